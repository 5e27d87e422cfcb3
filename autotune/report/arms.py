"""The ledger of a run, arm by arm: how often tried, on whose proposal, with what result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from policies.estimate import contradicts_replay, paired_estimate
from policies.types import Block, CellEvidence, PairedEstimate, SpeculativeConfig
from store.records import FailureRecord, MeasurementRecord, PredictionRecord, Stage

_ArmKey = tuple[int, SpeculativeConfig]
_STAGES: tuple[Stage, ...] = ("explore", "validate")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedArm:
    """One arm at one batch size that was measured, or failed.

    Attributes:
        batch_size: Scheduled requests in the step.
        config: The arm.
        explored: Gain over unloaded off, pooled over the search's blocks; None with fewer than
            two that count.
        validated: The same over the fresh blocks after selection.
        num_trials: Trials of the search by what proposed them, for example `prior` or `sampler`.
        num_disturbed: Blocks that do not count because something else used the device.
        predicted_tokens_per_s: What the model expected, or None.
        failures: Why trials failed, in their order.
        contradicts_replay: What its blocks emitted is not what replay expects, so the estimates
            rest on what was emitted.
    """

    batch_size: int
    config: SpeculativeConfig
    explored: PairedEstimate | None
    validated: PairedEstimate | None
    num_trials: Mapping[str, int]
    num_disturbed: int
    predicted_tokens_per_s: float | None
    failures: tuple[str, ...]
    contradicts_replay: bool = False

    @property
    def estimate(self) -> PairedEstimate | None:
        """The estimate from fresh blocks where there are any, else the search's."""
        return self.validated or self.explored

    def evidence(self) -> CellEvidence:
        """The arm as decisions see it."""
        return CellEvidence(
            batch_size=self.batch_size,
            config=self.config,
            explored=self.explored,
            validated=self.validated,
            predicted_tokens_per_s=self.predicted_tokens_per_s,
        )


def tried_arms(
    measurements: Iterable[MeasurementRecord],
    failures: Iterable[FailureRecord] = (),
    predictions: Iterable[PredictionRecord] = (),
) -> tuple[TriedArm, ...]:
    """Pool the ledger of one run.

    Args:
        measurements: Blocks of one run.
        failures: Its failed trials.
        predictions: The model's figures, with the part of the standard error that blocks cannot
            see; those of arms that were never tried are left out. An idle drafter has none: its
            rate does not depend on the choice of requests.

    Returns:
        Every arm once: by batch size, then the fastest first, those without an estimate last.
    """
    blocks: dict[_ArmKey, list[MeasurementRecord]] = defaultdict(list)
    for block in measurements:
        blocks[arm_of(block)].append(block)
    reasons: dict[_ArmKey, list[str]] = defaultdict(list)
    for failure in failures:
        reasons[arm_of(failure)].append(failure.reason)
    predicted = {arm_of(record): record for record in predictions}
    arms = [
        TriedArm(
            batch_size=batch_size,
            config=config,
            explored=_estimate(tried, "explore", prediction),
            validated=_estimate(tried, "validate", prediction),
            num_trials=_count_trials(tried),
            num_disturbed=sum(block.disturbed for block in tried),
            predicted_tokens_per_s=prediction.tokens_per_s if prediction else None,
            failures=tuple(reasons.get((batch_size, config), ())),
            contradicts_replay=any(
                contradicts_replay(_blocks(tried, stage), _request_std_error(prediction))
                for stage in _STAGES
            ),
        )
        for batch_size, config in {**blocks, **reasons}
        for tried in [blocks.get((batch_size, config), [])]
        for prediction in [predicted.get((batch_size, config))]
    ]
    return tuple(sorted(arms, key=_order))


def arm_of(record: MeasurementRecord | FailureRecord | PredictionRecord) -> _ArmKey:
    """Batch size and configuration that a record is about."""
    config = SpeculativeConfig(
        drafter=record.drafter,
        num_speculative_tokens=record.num_speculative_tokens,
        draft_temperature=record.draft_temperature,
    )
    return record.batch_size, config


def block_of(record: MeasurementRecord) -> Block:
    """The part of a stored block that decisions rest on."""
    return Block(
        baseline_tokens=record.baseline_tokens,
        baseline_s=record.baseline_s,
        candidate_tokens=record.candidate_tokens,
        candidate_s=record.candidate_s,
        expected_tokens=record.expected_tokens,
    )


def _count_trials(measurements: Iterable[MeasurementRecord]) -> dict[str, int]:
    trials = {(one.proposed_by, one.trial_number) for one in measurements if one.stage == "explore"}
    return dict(Counter(sorted(proposed_by for proposed_by, _ in trials)))


def _estimate(
    measurements: Iterable[MeasurementRecord], stage: Stage, prediction: PredictionRecord | None
) -> PairedEstimate | None:
    blocks = _blocks(measurements, stage)
    if len(blocks) < 2:
        return None
    found = paired_estimate(blocks, _request_std_error(prediction))
    # As in the search: what was explored was picked by its results, and no bound of it holds.
    return replace(found, log_ratios=()) if stage == "explore" else found


def _blocks(measurements: Iterable[MeasurementRecord], stage: Stage) -> list[Block]:
    """Those of one stage that count."""
    return [block_of(one) for one in measurements if one.stage == stage and not one.disturbed]


def _request_std_error(prediction: PredictionRecord | None) -> float:
    """An idle drafter has no prediction: its rate does not depend on the choice of requests."""
    return prediction.request_std_error if prediction else 0.0


def _order(arm: TriedArm) -> tuple[int, bool, float, str]:
    estimate = arm.estimate
    log_gain = estimate.log_gain if estimate else 0.0
    return arm.batch_size, estimate is None, -log_gain, arm.config.label()

"""A second, independent measurement of what was published: other requests, answers and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log1p
from typing import Any

from autotune.document import Interval, PublishedConfig
from autotune.errors import ConfigError
from autotune.progress import Progress, Stage
from autotune.settings import TuneSettings
from autotune.tuning.acceptance import profile_drafters
from autotune.tuning.blocks import Arm, Ledger
from autotune.tuning.paired import PairedBench
from autotune.tuning.session import open_session
from autotune.tuning.tune import run_record
from policies.estimate import difference_interval
from policies.types import PairedEstimate, SpeculativeConfig
from store.repository import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two measurements of one arm at one batch size.

    Attributes:
        batch_size: Requests in flight.
        config: The arm.
        status: Status of the published cell.
        first: The published estimate.
        second: The new one.
        difference_low: Lower end of the interval of second - first, on the log scale.
        difference_high: Upper end.
    """

    batch_size: int
    config: SpeculativeConfig
    status: str
    first: PairedEstimate
    second: PairedEstimate
    difference_low: float
    difference_high: float

    @property
    def contains_zero(self) -> bool:
        """True when the two measurements do not contradict each other."""
        return self.difference_low <= 0.0 <= self.difference_high


def remeasure(
    store: Store, progress: Progress, *, scope: str | None = None, seed: int | None = None
) -> tuple[Comparison, ...]:
    """Measure every arm behind a publication again.

    Args:
        store: Holds the publication and takes the new blocks.
        progress: Told what is being done.
        scope: Which publication; None takes the latest of any scope.
        seed: Seed of the new requests, answers and blocks; None takes the next one.

    Raises:
        ConfigError: Nothing was published, or the device or the model is another one now.
    """
    store.interrupt_stale_runs(datetime.now(UTC))
    publication = store.latest_any() if scope is None else store.latest(scope)
    if publication is None:
        raise ConfigError("nothing has been published yet: run `spectune tune` first")
    document = PublishedConfig.model_validate_json(publication.document)
    published = _published(document)
    settings = _settings(store.run(publication.run_id).settings, published, seed)
    progress.plan(_plan(settings, len(published)))
    session = open_session(settings, progress)
    for what, then, now in (
        ("target", document.match.target.fingerprint, session.target.fingerprint),
        ("device", document.match.device.fingerprint, session.device.fingerprint),
    ):
        if then != now:
            raise ConfigError(f"the {what} is not the one that was published for: {now} != {then}")
    with run_record(store, session, "remeasure") as run_id:
        acceptance = profile_drafters(session, progress)
        ledger = Ledger(store, run_id, PairedBench(session, acceptance), acceptance.log_std_error)
        progress.begin("Measure again")
        comparisons = []
        for order, (arm, (status, first)) in enumerate(published.items()):
            batch_size, config = arm
            progress.update(order / len(published), f"{config.label()} at batch {batch_size}")
            if config.drafter in acceptance.snapshots:
                ledger.measure(
                    arm, settings.validate_blocks, stage="remeasure", proposed_by="validation"
                )
            second = ledger.estimate(arm, "remeasure")
            if second is None:
                progress.note(f"{config.label()} at batch {batch_size} could not be measured again")
                continue
            low, high = difference_interval(second, first, document.policy.confidence)
            comparisons.append(
                Comparison(
                    batch_size=batch_size,
                    config=config,
                    status=status,
                    first=first,
                    second=second,
                    difference_low=low,
                    difference_high=high,
                )
            )
        progress.update(1.0)
    return tuple(comparisons)


def _published(document: PublishedConfig) -> dict[Arm, tuple[str, PairedEstimate]]:
    """The arms with a measured gain: what is published, and what was tried where it is off."""
    found: dict[Arm, tuple[str, PairedEstimate]] = {}
    for cell in document.evidence:
        if cell.measured is not None:
            config = SpeculativeConfig(
                drafter=cell.drafter,
                num_speculative_tokens=cell.num_speculative_tokens,
                draft_temperature=cell.draft_temperature if cell.num_speculative_tokens else None,
            )
            found[cell.batch_size, config] = (cell.status, _estimate(cell.measured))
        if cell.best_candidate is not None and cell.best_candidate_measured is not None:
            estimate = _estimate(cell.best_candidate_measured)
            found[cell.batch_size, cell.best_candidate.config()] = (cell.status, estimate)
    return found


def _settings(
    stored: Mapping[str, Any], published: Iterable[Arm], seed: int | None
) -> TuneSettings:
    """The run's settings with another seed, and only the drafters that were published."""
    needed = {config.drafter for _, config in published}
    depths = [name.removeprefix("layer-skip-") for name in needed if name.startswith("layer-skip-")]
    return TuneSettings.parse(
        {
            **stored,
            "seed": stored["seed"] + 1 if seed is None else seed,
            "ngram": "ngram" in needed,
            "layer_skip": sorted(int(depth) for depth in depths),
            "drafters": {k: v for k, v in stored["drafters"].items() if k in needed},
        }
    )


def _estimate(interval: Interval) -> PairedEstimate:
    return PairedEstimate(
        log_gain=log1p(interval.gain),
        std_error=interval.std_error,
        num_blocks=interval.num_blocks,
        baseline_tokens_per_s=interval.baseline_tokens_per_s,
        candidate_tokens_per_s=interval.candidate_tokens_per_s,
        request_std_error=interval.request_std_error,
    )


def _plan(settings: TuneSettings, num_arms: int) -> list[Stage]:
    return [
        Stage("Load the model", 10),
        Stage("Record answers", 0.5 * settings.num_requests),
        Stage("Replay the drafters", 0.8 * settings.num_requests),
        Stage("Measure again", num_arms * settings.validate_blocks * 5 * settings.window_s),
    ]

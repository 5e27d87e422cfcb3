"""Why a batch size got its K: the candidates, their figures, and the sentences of the decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.document import Cell, CellEvidenceModel, PublishedConfig
from autotune.figures import interval
from autotune.report.arms import TriedArm, tried_arms
from autotune.report.lookup import arm_of_evidence, cell_for
from autotune.report.recompute import differences, recompute
from policies.types import PairedEstimate, SpeculativeConfig
from store.records import PredictionRecord

if TYPE_CHECKING:
    from store.repository import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything about one batch size.

    Attributes:
        batch_size: What was asked about.
        cell: The cell of the schedule that holds it.
        reasons: Why this K, in sentences, the most particular one first.
        evidence: The decision where the batch size was measured, else None.
        neighbours: Decisions at the measured sizes that the rule went by, else empty.
        arms: Candidates that were tried at this batch size, fastest first.
        num_predicted: Arms that the model had a figure for at this batch size.
        confidence: Confidence of the intervals.
        differences: Where the decision, made again from the ledger, is not what was published;
            None for a document that does not say what it was asked.
    """

    batch_size: int
    cell: Cell
    reasons: tuple[str, ...]
    evidence: CellEvidenceModel | None
    neighbours: tuple[CellEvidenceModel, ...]
    arms: tuple[TriedArm, ...]
    num_predicted: int
    confidence: float
    differences: tuple[str, ...] | None = None

    @property
    def chosen(self) -> SpeculativeConfig | None:
        """The published arm, or None where the batch size was not measured."""
        return None if self.evidence is None else arm_of_evidence(self.evidence)

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        return {
            "batch_size": self.batch_size,
            "measured": self.evidence is not None,
            "num_speculative_tokens": self.cell.num_speculative_tokens,
            "cell": self.cell.model_dump(mode="json"),
            "reasons": list(self.reasons),
            "evidence": None if self.evidence is None else self.evidence.model_dump(mode="json"),
            "neighbours": [one.model_dump(mode="json") for one in self.neighbours],
            "candidates": [self._arm_json(arm) for arm in self.arms],
            "num_predicted": self.num_predicted,
            "recomputed": None if self.differences is None else not self.differences,
            "differences": list(self.differences or ()),
        }

    def _arm_json(self, arm: TriedArm) -> dict[str, object]:
        return {
            "drafter": arm.config.drafter,
            "num_speculative_tokens": arm.config.num_speculative_tokens,
            "draft_temperature": arm.config.draft_temperature,
            "chosen": arm.config == self.chosen,
            "num_trials": dict(arm.num_trials),
            "num_disturbed_blocks": arm.num_disturbed,
            "contradicts_replay": arm.contradicts_replay,
            "explored": self._estimate_json(arm.explored),
            "validated": self._estimate_json(arm.validated),
            "predicted_tokens_per_s": arm.predicted_tokens_per_s,
            "failures": list(arm.failures),
        }

    def _estimate_json(self, estimate: PairedEstimate | None) -> dict[str, object] | None:
        if estimate is None:
            return None
        return interval(estimate, self.confidence).model_dump(mode="json")


def explain(
    config: PublishedConfig,
    batch_size: int,
    arms: Iterable[TriedArm],
    predictions: Sequence[PredictionRecord],
) -> Explanation:
    """Explain one batch size of a document.

    Args:
        config: The document.
        batch_size: Any size the schedule covers, measured or not.
        arms: The ledger of the run behind it.
        predictions: The model's figures of that run.

    Raises:
        ValueError: `batch_size` is below 1, or the schedule does not cover it.
    """
    cell = cell_for(config, batch_size)
    evidence = next((one for one in config.evidence if one.batch_size == batch_size), None)
    neighbours = () if evidence else _neighbours(config, batch_size)
    found = evidence.reason if evidence else _rule(config, batch_size, neighbours)
    return Explanation(
        batch_size=batch_size,
        cell=cell,
        reasons=(found, config.reason),
        evidence=evidence,
        neighbours=neighbours,
        arms=tuple(arm for arm in arms if arm.batch_size == batch_size),
        num_predicted=sum(one.batch_size == batch_size for one in predictions),
        confidence=config.policy.confidence,
    )


def explain_published(store: Store, config: PublishedConfig, batch_size: int) -> Explanation:
    """Explain one batch size of a document from the ledger of its run.

    Raises:
        ValueError: As `explain`.
        StoreError: The run cannot be read.
    """
    predictions = store.predictions(config.run_id, batch_size)
    failures = [one for one in store.failures(config.run_id) if one.batch_size == batch_size]
    arms = tried_arms(
        store.measurements(config.run_id, batch_size),
        failures,
        predictions,
    )
    again = recompute(store, config)
    return replace(
        explain(config, batch_size, arms, predictions),
        differences=None if again is None else differences(config, again),
    )


def _neighbours(config: PublishedConfig, batch_size: int) -> tuple[CellEvidenceModel, ...]:
    """The decisions at the nearest measured sizes below and above, where there are any."""
    ordered = sorted(config.evidence, key=lambda one: one.batch_size)
    below = [one for one in ordered if one.batch_size < batch_size][-1:]
    above = [one for one in ordered if one.batch_size > batch_size][:1]
    return (*below, *above)


def _rule(config: PublishedConfig, batch_size: int, neighbours: Sequence[CellEvidenceModel]) -> str:
    near = " and ".join(f"K = {n.num_speculative_tokens} at {n.batch_size}" for n in neighbours)
    measured = f" The nearest measured sizes have {near}." if near else ""
    return f"Batch size {batch_size} was not measured. {config.policy.between_sizes}{measured}"

"""A published decision made again from the ledger, without a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.document import Arm, Cell, Interval, PublishedConfig
from autotune.figures import estimate_of, interval
from autotune.report.arms import tried_arms
from policies.decide import decide
from policies.types import (
    CellDecision,
    CellEvidence,
    Decision,
    Envelope,
    Margins,
    SpeculativeConfig,
)

if TYPE_CHECKING:
    from store.repository import Store


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A decision and what it rests on.

    Attributes:
        decision: Made from the ledger.
        evidence: By batch size and arm.
    """

    decision: Decision
    evidence: Mapping[tuple[int, SpeculativeConfig], CellEvidence]


def recompute(store: Store, config: PublishedConfig) -> Recomputed | None:
    """Decide again what a document decided, from the blocks of its run alone.

    Args:
        store: Holds the run.
        config: The document.

    Returns:
        None for a document that does not say what it was asked.

    Raises:
        StoreError: The run cannot be read.
    """
    question, policy = config.question, config.policy
    if question is None:
        return None
    failures = store.failures(config.run_id)
    failed = {one.drafter for one in failures}
    arms = tried_arms(store.measurements(config.run_id), failures, store.predictions(config.run_id))
    evidence = [arm.evidence() for arm in arms if arm.config.drafter not in failed]
    present = {one.batch_size for one in evidence}
    # A batch size whose trials all failed was part of the decision, without estimates.
    evidence += [
        CellEvidence(
            batch_size=one.batch_size,
            config=SpeculativeConfig(drafter="unmeasured", num_speculative_tokens=1),
        )
        for one in config.evidence
        if one.batch_size not in present
    ]
    decision = decide(
        evidence,
        Envelope(
            drafter=question.drafter,
            max_num_speculative_tokens=question.max_num_speculative_tokens,
            draft_temperature=question.draft_temperature,
        ),
        question.weights,
        Margins(
            hot=policy.hot_margin,
            restart=policy.restart_margin,
            harm=policy.harm_limit,
            confidence=policy.confidence,
            tie=question.tie_margin,
        ),
        candidates={size: arm.config() for size, arm in question.candidates.items()},
    )
    return Recomputed(decision, {(one.batch_size, one.config): one for one in evidence})


def differences(config: PublishedConfig, again: Recomputed) -> tuple[str, ...]:
    """Where what was found again is not what was published; empty if all is equal to the bit.

    Compared are the envelope, the schedule, the reasons, and of every measured batch size the arm,
    its status, the best candidate and both measured gains with their intervals and rates.
    """
    published, decision = _of_document(config), again.decision
    found: dict[str, object] = {
        "reason": decision.reason,
        "envelope": (
            decision.envelope.drafter,
            decision.envelope.max_num_speculative_tokens,
            decision.envelope.draft_temperature,
        ),
        "schedule": tuple(map(Cell.of, decision.schedule)),
        "batch sizes": tuple(cell.batch_size for cell in decision.cells),
    }
    for cell in decision.cells:
        found |= dict(_of_cell(cell, again, config.policy.confidence))
    return tuple(
        f"{what}: {value} was published, {found.get(what)} was found"
        for what, value in published.items()
        if value != found.get(what)
    )


def _of_document(config: PublishedConfig) -> dict[str, object]:
    """Everything that is compared, by name."""
    envelope = config.envelope
    published: dict[str, object] = {
        "reason": config.reason,
        "envelope": (
            envelope.drafter,
            envelope.max_num_speculative_tokens,
            envelope.draft_temperature,
        ),
        "schedule": config.schedule,
        "batch sizes": tuple(one.batch_size for one in config.evidence),
    }
    for one in config.evidence:
        at = f"at batch size {one.batch_size}"
        published |= {
            f"arm {at}": (one.drafter, one.num_speculative_tokens, one.draft_temperature),
            f"status {at}": one.status,
            f"reason {at}": one.reason,
            f"gain {at}": one.measured,
            f"best candidate {at}": one.best_candidate,
            f"its gain {at}": one.best_candidate_measured,
        }
    return published


def _of_cell(
    cell: CellDecision, again: Recomputed, confidence: float
) -> Iterator[tuple[str, object]]:
    """The same of one decided batch size."""

    def measured(arm: SpeculativeConfig | None) -> Interval | None:
        estimate = arm and estimate_of(again.evidence, cell.batch_size, arm)
        return interval(estimate, confidence) if estimate else None

    at, chosen = f"at batch size {cell.batch_size}", cell.chosen
    yield (
        f"arm {at}",
        (chosen.drafter, chosen.num_speculative_tokens, chosen.draft_temperature),
    )
    yield f"status {at}", cell.status.value
    yield f"reason {at}", cell.reason
    yield f"gain {at}", measured(chosen)
    yield f"best candidate {at}", cell.best_candidate and Arm.of(cell.best_candidate)
    yield f"its gain {at}", measured(cell.best_candidate)

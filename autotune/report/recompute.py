"""A published decision made again from the ledger, without a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.document import PublishedConfig
from autotune.report.arms import tried_arms
from policies.decide import decide
from policies.types import (
    CellEvidence,
    Decision,
    Envelope,
    Margins,
    SpeculativeConfig,
)

if TYPE_CHECKING:
    from store.repository import Store


def recompute(store: Store, config: PublishedConfig) -> Decision | None:
    """Decide again what a document decided, from the blocks of its run alone.

    Args:
        store: Holds the run.
        config: The document.

    Returns:
        The decision; None for a document that does not say what it was asked.

    Raises:
        StoreError: The run cannot be read.
    """
    question = config.question
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
    policy = config.policy
    return decide(
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


def differences(config: PublishedConfig, decision: Decision) -> tuple[str, ...]:
    """Where a decision is not what was published; empty if it is the same to the letter."""
    found = []
    if config.reason != decision.reason:
        found.append(f"reason: {config.reason!r} was published, {decision.reason!r} was found")
    published = [
        (one.batch_size, one.drafter, one.num_speculative_tokens, one.status, one.reason)
        for one in config.evidence
    ]
    again = [
        (
            cell.batch_size,
            cell.chosen.drafter,
            cell.chosen.num_speculative_tokens,
            cell.status.value,
            cell.reason,
        )
        for cell in decision.cells
    ]
    if len(published) != len(again):
        found.append(f"{len(published)} batch sizes were published, {len(again)} were found")
    for before, now in zip(published, again, strict=False):
        if before != now:
            found.append(f"batch size {before[0]}: {before[1:]} was published, {now[1:]} was found")
    ranges = [(cell.bs_lo, cell.bs_hi, cell.num_speculative_tokens) for cell in config.schedule]
    found_ranges = [
        (cell.bs_lo, cell.bs_hi, cell.num_speculative_tokens) for cell in decision.schedule
    ]
    if ranges != found_ranges:
        found.append("the schedule is another one")
    return tuple(found)

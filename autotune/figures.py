"""Measured gains in the form in which they are published."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.document import Interval
from policies.estimate import confidence_interval, gain
from policies.types import CellEvidence, PairedEstimate, SpeculativeConfig


def estimate_of(
    evidence: Mapping[tuple[int, SpeculativeConfig], CellEvidence],
    batch_size: int,
    config: SpeculativeConfig,
) -> PairedEstimate | None:
    """What is published about an arm: fresh blocks where there are any; None if unmeasured.

    An idle drafter is one arm whatever its draft temperature.
    """
    arm = config if config.speculates else SpeculativeConfig(drafter=config.drafter)
    cell = evidence.get((batch_size, arm))
    return None if cell is None else cell.validated or cell.explored


def interval(estimate: PairedEstimate, confidence: float) -> Interval:
    """A measured gain as a fraction, with its two-sided interval.

    Raises:
        ValueError: `confidence` is not between 0 and 1.
    """
    low, high = confidence_interval(estimate, confidence)
    return Interval(
        gain=gain(estimate.log_gain),
        low=gain(low),
        high=gain(high),
        confidence=confidence,
        num_blocks=estimate.num_blocks,
        std_error=estimate.std_error,
        request_std_error=estimate.request_std_error,
        baseline_tokens_per_s=estimate.baseline_tokens_per_s,
        candidate_tokens_per_s=estimate.candidate_tokens_per_s,
    )

"""Measured gains in the form in which they are published."""

from __future__ import annotations

from autotune.document import Interval
from policies.estimate import confidence_interval, gain
from policies.types import PairedEstimate


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

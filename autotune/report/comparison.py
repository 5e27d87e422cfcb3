"""Two measurements of one arm as JSON values."""

from __future__ import annotations

from autotune.tuning.remeasure import Comparison
from policies.estimate import gain
from policies.types import PairedEstimate


def comparison_json(one: Comparison) -> dict[str, object]:
    """Both measurements and the interval of their difference; gains are fractions."""
    return {
        "batch_size": one.batch_size,
        "drafter": one.config.drafter,
        "num_speculative_tokens": one.config.num_speculative_tokens,
        "draft_temperature": one.config.draft_temperature,
        "status": one.status,
        "first": _estimate_json(one.first),
        "second": _estimate_json(one.second),
        "difference": {
            "low": gain(one.difference_low),
            "high": gain(one.difference_high),
            "contains_zero": one.contains_zero,
        },
    }


def _estimate_json(estimate: PairedEstimate) -> dict[str, object]:
    return {
        "gain": gain(estimate.log_gain),
        "std_error": estimate.std_error,
        "num_blocks": estimate.num_blocks,
        "baseline_tokens_per_s": estimate.baseline_tokens_per_s,
        "candidate_tokens_per_s": estimate.candidate_tokens_per_s,
    }

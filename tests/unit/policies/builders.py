"""Short ways to write evidence in tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.types import (
    Block,
    CellDecision,
    CellEvidence,
    CellStatus,
    PairedEstimate,
    SpeculativeConfig,
)

BASELINE_TOKENS_PER_S = 100.0


def estimate(gain: float, *, std_error: float = 0.002, num_blocks: int = 30) -> PairedEstimate:
    """An estimate with a given gain (a fraction) and standard error (of the log gain)."""
    return PairedEstimate(
        log_gain=math.log1p(gain),
        std_error=std_error,
        num_blocks=num_blocks,
        baseline_tokens_per_s=BASELINE_TOKENS_PER_S,
        candidate_tokens_per_s=BASELINE_TOKENS_PER_S * (1 + gain),
    )


def arm(
    batch_size: int,
    num_speculative_tokens: int,
    *,
    explored: PairedEstimate | None = None,
    validated: PairedEstimate | None = None,
    drafter: str = "ngram",
    draft_temperature: float | None = None,
) -> CellEvidence:
    """Evidence on one arm."""
    return CellEvidence(
        batch_size=batch_size,
        config=SpeculativeConfig(
            drafter=drafter,
            num_speculative_tokens=num_speculative_tokens,
            draft_temperature=draft_temperature,
        ),
        explored=explored,
        validated=validated,
    )


def cell(
    batch_size: int,
    num_speculative_tokens: int,
    *,
    drafter: str = "ngram",
    status: CellStatus = CellStatus.VALIDATED,
) -> CellDecision:
    """A decision at one measured batch size."""
    return CellDecision(
        batch_size=batch_size,
        chosen=SpeculativeConfig(drafter=drafter, num_speculative_tokens=num_speculative_tokens),
        best_candidate=None,
        status=status,
        reason="Because.",
    )


def blocks_from_rates(baseline: Sequence[float], candidate: Sequence[float]) -> list[Block]:
    """One block per repeat, from tokens per second given to two decimals."""
    return [
        Block(
            baseline_tokens=round(100 * off),
            baseline_s=100.0,
            candidate_tokens=round(100 * on),
            candidate_s=100.0,
        )
        for off, on in zip(baseline, candidate, strict=True)
    ]

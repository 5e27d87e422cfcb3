"""Names of arms."""

from __future__ import annotations

from functools import lru_cache

from policies.types import SpeculativeConfig

Arm = tuple[int, SpeculativeConfig]
"""A batch size and a configuration."""


@lru_cache(maxsize=4096)
def arm_config(
    drafter: str, num_speculative_tokens: int, draft_temperature: float | None = None
) -> SpeculativeConfig:
    """A configuration; the draft temperature is dropped at K = 0, where it means nothing."""
    return SpeculativeConfig(
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        draft_temperature=draft_temperature if num_speculative_tokens else None,
    )

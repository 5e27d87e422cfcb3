"""Between Optuna's parameters and arms of the search.

Arms are flattened: one categorical `drafter` that includes `off`, with K and the draft temperature
always suggested and masked where they mean nothing. A conditional space would fall back to
independent sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from policies.types import OFF, OFF_DRAFTER, SpeculativeConfig

_FOLLOW = "follow"


class SearchSpace:
    """The arms of one search."""

    def __init__(
        self,
        temperatures: Mapping[str, Sequence[float | None]],
        max_num_speculative_tokens: int,
    ) -> None:
        """Describe the space.

        Args:
            temperatures: Draft temperatures that make a difference, by drafter.
            max_num_speculative_tokens: Largest K.
        """
        self._temperatures = {name: tuple(values) for name, values in temperatures.items()}
        names = [OFF_DRAFTER, *self._temperatures]
        labels = {_label(t) for values in self._temperatures.values() for t in values}
        self.distributions: dict[str, BaseDistribution] = {
            "drafter": CategoricalDistribution(names),
            "num_speculative_tokens": IntDistribution(0, max_num_speculative_tokens),
            "draft_temperature": CategoricalDistribution(sorted(labels | {_FOLLOW})),
        }

    def config(self, params: Mapping[str, Any]) -> SpeculativeConfig:
        """The arm that parameters mean, masked values dropped."""
        drafter, k = params["drafter"], params["num_speculative_tokens"]
        if drafter == OFF_DRAFTER:
            return OFF
        # A value that only other drafters have stands for the drafter's first one.
        own = self._temperatures[drafter]
        known = {_label(t): t for t in own}
        temperature = known.get(params["draft_temperature"], own[0]) if k else None
        return SpeculativeConfig(
            drafter=drafter, num_speculative_tokens=k, draft_temperature=temperature
        )

    def params(self, config: SpeculativeConfig) -> dict[str, Any]:
        """Parameters that mean an arm."""
        return {
            "drafter": config.drafter,
            "num_speculative_tokens": config.num_speculative_tokens,
            "draft_temperature": _label(config.draft_temperature),
        }


def _label(temperature: float | None) -> str:
    return _FOLLOW if temperature is None else f"{temperature:g}"

"""The model's prediction: replayed tokens per round over the cost table's step time."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.tuning.acceptance import AcceptanceProfile
from engine.latency import CostTable
from policies.types import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Prior:
    """Predicts decode rates of all arms without measuring them."""

    acceptance: AcceptanceProfile
    costs: CostTable

    def off_tokens_per_s(self, batch_size: int) -> float:
        """Output tokens per second without speculation."""
        return batch_size / self.costs.verify_s(batch_size, 1.0)

    def tokens_per_s(self, config: SpeculativeConfig, batch_size: int) -> float:
        """Output tokens per second of an arm: b * tau_K / T(b, K).

        An idle drafter is predicted to cost nothing; that is measured, not assumed, later.
        """
        if not config.speculates:
            return self.off_tokens_per_s(batch_size)
        counts = self.acceptance.replay(config)
        seconds = self.costs.verify_s(batch_size, counts.mean_verify_tokens) + self.costs.draft_s(
            config.drafter, batch_size, config.num_speculative_tokens
        )
        return batch_size * counts.tokens_per_round / seconds

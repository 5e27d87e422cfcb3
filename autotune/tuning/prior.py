"""The model's prediction: replayed tokens per round over the cost table's step time."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.paired_block import Tally
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
        seconds = self._round_s(config, batch_size, counts.mean_verify_tokens)
        return batch_size * counts.tokens_per_round / seconds

    def expected_tokens(
        self, config: SpeculativeConfig, batch_size: int, tally: Tally
    ) -> float | None:
        """Tokens that the work of a window emits on average.

        Its rounds would accept what replay says. Where they happened to verify more or fewer
        drafts than usual, and so took longer or shorter, the model says by how much.

        Returns:
            None for an arm without drafts, and at a batch size that was not timed.
        """
        if not config.speculates or batch_size not in self.costs.batch_sizes:
            return None
        counts = self.acceptance.replay(config)
        verified = 1 + tally.num_draft_tokens / tally.num_rounds
        relative_s = self._round_s(config, batch_size, verified) / self._round_s(
            config, batch_size, counts.mean_verify_tokens
        )
        return tally.num_rounds * counts.tokens_per_round * relative_s

    def _round_s(self, config: SpeculativeConfig, batch_size: int, tokens_per_row: float) -> float:
        k = config.num_speculative_tokens
        draft_s = self.costs.draft_s(config.drafter, batch_size, k)
        return self.costs.verify_s(batch_size, tokens_per_row) + draft_s

"""Drawing draft tokens: what a drafter drew from is what the verification will be told."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.kernels.sampling import best_tokens, draw
from engine.request import Sequence


def draft_temperatures(sequences: Seq[Sequence], draft_temperature: float | None) -> list[float]:
    """Temperature that each row drafts at; greedy requests are always drafted greedily."""
    return [
        sequence.request.params.temperature
        if draft_temperature is None or sequence.request.params.is_greedy
        else draft_temperature
        for sequence in sequences
    ]


def draw_step(
    logits: Tensor,
    sequences: Seq[Sequence],
    temperatures: Seq[float],
    step: int,
    out: Tensor | None,
    columns: Tensor | None = None,
) -> list[int]:
    """One draft token per row.

    Args:
        logits: [B, drafted].
        sequences: State of each row before the round.
        temperatures: Of each row, from `draft_temperatures`.
        step: Draft tokens that the rows have already.
        out: [B, vocab] float32, takes what each token is drawn from; None where all rows of
            the round are drafted greedily, so that no distribution is needed.
        columns: As in `engine.kernels.sampling.draw`.

    Returns:
        The column of the logits that was drawn in every row.

    Raises:
        NumericError: The logits are not finite.
    """
    if out is None:
        return best_tokens(logits).tolist()
    params = [sequence.request.params for sequence in sequences]
    return draw(
        logits,
        temperatures,
        [p.top_k for p in params],
        [p.top_p for p in params],
        [sequence.key(step) for sequence in sequences],
        out,
        columns,
    )


class DraftProbs:
    """Memory for the distributions of a round, the same in every round.

    What is not written stays as it was: zero, or what an earlier round wrote there.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Start without any."""
        self._vocab_size = vocab_size
        self._rows = torch.zeros((0, vocab_size), device=device)

    def of_round(self, temperatures: Seq[float], limits: Seq[int]) -> Tensor | None:
        """[B, longest draft, vocab] float32; None if all rows are drafted greedily."""
        if not any(temperatures):
            return None
        batch, longest = len(limits), max(limits)
        if batch * longest > self._rows.shape[0]:
            self._rows = self._rows.new_zeros((batch * longest, self._vocab_size))
        return self._rows[: batch * longest].view(batch, longest, self._vocab_size)

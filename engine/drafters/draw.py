"""Drawing draft tokens: what a drafter drew from is what the verification will be told."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.kernels.sampling import best_tokens, processed_probs, sample_from
from engine.request import Sequence
from engine.rng import Purpose, uniform


def draft_temperatures(sequences: Seq[Sequence], draft_temperature: float | None) -> list[float]:
    """Temperature that each row drafts at; greedy requests are always drafted greedily."""
    return [
        sequence.request.params.temperature
        if draft_temperature is None or sequence.request.params.is_greedy
        else draft_temperature
        for sequence in sequences
    ]


def draw(
    logits: Tensor, sequences: Seq[Sequence], temperatures: Seq[float], step: int, *, greedy: bool
) -> tuple[list[int], Tensor | None]:
    """One draft token per row.

    Args:
        logits: [B, columns].
        sequences: State of each row before the round.
        temperatures: Of each row, from `draft_temperatures`.
        step: Draft tokens that the rows have already.
        greedy: All rows of the round are drafted greedily: no distribution is needed.

    Returns:
        The column of each row's token, and what it was drawn from [B, columns], None if greedy.

    Raises:
        NumericError: The logits are not finite.
    """
    if greedy:
        return best_tokens(logits).tolist(), None
    params = [sequence.request.params for sequence in sequences]
    probs = processed_probs(
        logits, temperatures, [p.top_k for p in params], [p.top_p for p in params]
    )
    uniforms = [
        uniform(
            sequence.request.params.seed,
            sequence.round_index + 1,
            len(sequence.tokens) + step,
            Purpose.DRAFT,
        )
        for sequence in sequences
    ]
    return sample_from(probs, uniforms).tolist(), probs


def draft_probs(
    temperatures: Seq[float], limits: Seq[int], vocab_size: int, device: torch.device
) -> Tensor | None:
    """Room for the distributions of a round [B, longest draft, vocab]; None if all are greedy."""
    if not any(temperatures):
        return None
    return torch.zeros((len(limits), max(limits), vocab_size), device=device)

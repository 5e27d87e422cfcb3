"""Verification of a whole batch: each row by its exact rule, greedy and sampled rows mixed."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.base import Proposal
from engine.request import Sequence
from engine.rng import Purpose, uniform
from engine.sampling import check_logits, processed_probs
from engine.verify import Verdict, verify_greedy, verify_sampled


def verify_batch(
    logits: Tensor, first_rows: list[int], sequences: list[Sequence], proposal: Proposal
) -> tuple[Verdict, list[Tensor | None]]:
    """Accept drafts and choose the token after them.

    Args:
        logits: [T, vocab]. Not modified.
        first_rows: Where each sequence's len(draft) + 1 rows begin in T.
        sequences: State of each row before the round.
        proposal: The drafts.

    Returns:
        The verdict over all rows, and the target's processed distributions [>= len(draft) + 1,
        vocab] of sampled rows (None for greedy rows).

    Raises:
        NumericError: The target's logits hold NaN.
    """
    check_logits(logits)
    accepted = [0] * len(sequences)
    following = [0] * len(sequences)
    probs: list[Tensor | None] = [None] * len(sequences)
    num_fallbacks = 0
    greedy = [r for r, seq in enumerate(sequences) if seq.request.params.is_greedy]
    sampled = [r for r, seq in enumerate(sequences) if not seq.request.params.is_greedy]
    if greedy:
        index = _padded(first_rows, proposal, greedy, logits.device)
        best = logits.argmax(dim=-1)[index]
        verdict = verify_greedy(best, [proposal.tokens[row] for row in greedy])
        for i, row in enumerate(greedy):
            accepted[row], following[row] = verdict.num_accepted[i], verdict.next_tokens[i]
    if sampled:
        verdict, distributions = _verify_sampled(logits, first_rows, sequences, proposal, sampled)
        num_fallbacks = verdict.num_fallbacks
        for i, row in enumerate(sampled):
            accepted[row], following[row] = verdict.num_accepted[i], verdict.next_tokens[i]
            probs[row] = distributions[i]
    return Verdict(accepted, following, num_fallbacks), probs


def log_probs(probs: Tensor | None, tokens: list[int]) -> tuple[float, ...]:
    """Log-probability of each emitted token; a greedy row's tokens are certain.

    Args:
        probs: [>= len(tokens), vocab] processed distributions, or None for a greedy row.
        tokens: The emitted tokens.
    """
    if probs is None:
        return (0.0,) * len(tokens)
    chosen = probs[torch.arange(len(tokens)), torch.tensor(tokens)]
    return tuple(chosen.double().log().tolist())


def _verify_sampled(
    logits: Tensor,
    first_rows: list[int],
    sequences: list[Sequence],
    proposal: Proposal,
    rows: list[int],
) -> tuple[Verdict, Tensor]:
    """Ratio or delta rule over the sampled rows; distributions [rows, Q, vocab]."""
    drafts = [proposal.tokens[row] for row in rows]
    params = [sequences[row].request.params for row in rows]
    index = _padded(first_rows, proposal, rows, logits.device)
    q_len = index.shape[1]
    probs = processed_probs(
        logits[index.flatten()],
        [p.temperature for p in params for _ in range(q_len)],
        [p.top_k for p in params for _ in range(q_len)],
        [p.top_p for p in params for _ in range(q_len)],
    ).view(len(rows), q_len, -1)

    def uniforms(row: int, count: int, purpose: Purpose) -> list[float]:
        sequence = sequences[row]
        seed, first = sequence.request.params.seed, len(sequence.tokens)
        round_index = sequence.round_index + 1
        return [uniform(seed, round_index, first + i, purpose) for i in range(count)]

    verdict = verify_sampled(
        probs,
        drafts,
        None if proposal.probs is None else proposal.probs[rows],
        [uniforms(r, len(d), Purpose.ACCEPT) for r, d in zip(rows, drafts, strict=True)],
        [uniforms(r, len(d) + 1, Purpose.EMIT) for r, d in zip(rows, drafts, strict=True)],
    )
    return verdict, probs


def _padded(
    first_rows: list[int], proposal: Proposal, rows: list[int], device: torch.device
) -> Tensor:
    """[len(rows), longest draft + 1] indices into the flat rows; short rows repeat their last."""
    longest = max(len(proposal.tokens[row]) for row in rows)
    return torch.tensor(
        [
            [first_rows[row] + min(i, len(proposal.tokens[row])) for i in range(longest + 1)]
            for row in rows
        ],
        device=device,
    )

"""Verification of a whole batch: each row by its exact rule, greedy and sampled rows mixed."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from engine.drafters.base import Proposal
from engine.kernels.sampling import best_tokens, processed_probs
from engine.request import Sequence
from engine.rng import Purpose, uniform
from engine.verify import Verdict, verify_greedy, verify_sampled
from engine.verify_block import verify_block
from policies.types import VerificationRule


def verify_batch(
    logits: Tensor,
    first_rows: list[int],
    sequences: list[Sequence],
    proposal: Proposal,
    rule: VerificationRule = VerificationRule.RATIO,
) -> tuple[Verdict, list[Tensor | None]]:
    """Accept drafts and choose the token after them.

    Args:
        logits: [T, vocab]. Not modified.
        first_rows: Where each sequence's len(draft) + 1 rows begin in T.
        sequences: State of each row before the round.
        proposal: The drafts.
        rule: How sampled rows accept drafts that were drawn from a distribution.

    Returns:
        The verdict over all rows, and the target's processed distributions [>= len(draft) + 1,
        vocab] of sampled rows (None for greedy rows).

    Raises:
        NumericError: The target's logits hold NaN.
    """
    accepted = [0] * len(sequences)
    following = [0] * len(sequences)
    probs: list[Tensor | None] = [None] * len(sequences)
    num_fallbacks = 0
    greedy = [r for r, seq in enumerate(sequences) if seq.request.params.is_greedy]
    sampled = [r for r, seq in enumerate(sequences) if not seq.request.params.is_greedy]
    if greedy:
        best = best_tokens(logits).tolist()
        drafts = [proposal.tokens[row] for row in greedy]
        ends = [first_rows[row] + len(proposal.tokens[row]) + 1 for row in greedy]
        starts = [first_rows[row] for row in greedy]
        verdict = verify_greedy(
            [best[start:end] for start, end in zip(starts, ends, strict=True)], drafts
        )
        for i, row in enumerate(greedy):
            accepted[row], following[row] = verdict.num_accepted[i], verdict.next_tokens[i]
    if sampled:
        verdict, distributions = _verify_sampled(
            logits, first_rows, sequences, proposal, sampled, rule
        )
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
    rule: VerificationRule,
) -> tuple[Verdict, list[Tensor]]:
    """The rule over the sampled rows, and the distributions of each."""
    drafts = [proposal.tokens[row] for row in rows]
    params = [sequences[row].request.params for row in rows]
    counts = [len(draft) + 1 for draft in drafts]
    wanted = [
        first_rows[row] + i for row, count in zip(rows, counts, strict=True) for i in range(count)
    ]
    flat = processed_probs(
        logits,
        _repeated([p.temperature for p in params], counts),
        _repeated([p.top_k for p in params], counts),
        _repeated([p.top_p for p in params], counts),
        wanted,
    )
    probs = list(torch.split(flat, counts))

    def uniforms(row: int, count: int, purpose: Purpose) -> list[float]:
        sequence = sequences[row]
        seed, first = sequence.request.params.seed, len(sequence.tokens)
        round_index = sequence.round_index + 1
        return [uniform(seed, round_index, first + i, purpose) for i in range(count)]

    draft_probs = proposal.probs
    if draft_probs is not None and len(rows) < len(sequences):
        draft_probs = draft_probs[rows]
    verify = verify_block if rule is VerificationRule.BLOCK else verify_sampled
    verdict = verify(
        probs,
        drafts,
        draft_probs,
        [uniforms(r, len(d), Purpose.ACCEPT) for r, d in zip(rows, drafts, strict=True)],
        [uniforms(r, len(d) + 1, Purpose.EMIT) for r, d in zip(rows, drafts, strict=True)],
    )
    return verdict, probs


_T = TypeVar("_T", int, float)


def _repeated(values: list[_T], counts: list[int]) -> list[_T]:
    """Each value as often as its row has positions."""
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]

"""Verification of a whole batch: each row by its exact rule, greedy and sampled rows mixed."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from engine.drafters.base import Proposal
from engine.kernels.sampling import best_tokens, broken_logits, native_for, processed_probs
from engine.request import Sequence
from engine.rng import Key, Purpose, uniform
from engine.verify import Verdict, verify_greedy, verify_sampled
from engine.verify_block import verify_block
from policies.types import VerificationRule


def verify_batch(
    logits: Tensor,
    first_rows: list[int],
    sequences: list[Sequence],
    proposal: Proposal,
    rule: VerificationRule = VerificationRule.RATIO,
) -> tuple[Verdict, list[list[float]]]:
    """Accept drafts and choose the token after them.

    Args:
        logits: [T, vocab]. Not modified.
        first_rows: Where each sequence's len(draft) + 1 rows begin in T.
        sequences: State of each row before the round.
        proposal: The drafts.
        rule: How sampled rows accept drafts that were drawn from a distribution.

    Returns:
        The verdict over all rows, and the probability of each accepted token and of the one after
        them under the target's processed distribution: 1 for greedy rows.

    Raises:
        NumericError: The target's logits hold NaN.
    """
    greedy = [r for r, seq in enumerate(sequences) if seq.request.params.is_greedy]
    sampled = [r for r, seq in enumerate(sequences) if not seq.request.params.is_greedy]
    accepted, following = [0] * len(sequences), [0] * len(sequences)
    probs: list[list[float]] = [[] for _ in sequences]
    num_fallbacks = 0
    for rows, verify in ((greedy, _verify_greedy), (sampled, _verify_sampled)):
        if not rows:
            continue
        verdict, found = verify(logits, first_rows, sequences, proposal, rows, rule)
        num_fallbacks += verdict.num_fallbacks
        for i, row in enumerate(rows):
            accepted[row], following[row] = verdict.num_accepted[i], verdict.next_tokens[i]
            probs[row] = found[i]
    return Verdict(accepted, following, num_fallbacks), probs


def _verify_greedy(
    logits: Tensor,
    first_rows: list[int],
    sequences: list[Sequence],
    proposal: Proposal,
    rows: list[int],
    rule: VerificationRule,
) -> tuple[Verdict, list[list[float]]]:
    """Greedy rows know one rule: the longest match."""
    best = best_tokens(logits).tolist()
    drafts = [proposal.tokens[row] for row in rows]
    starts = [first_rows[row] for row in rows]
    verdict = verify_greedy(
        [best[start : start + len(draft) + 1] for start, draft in zip(starts, drafts, strict=True)],
        drafts,
    )
    return verdict, [[1.0] * (count + 1) for count in verdict.num_accepted]


def _verify_sampled(
    logits: Tensor,
    first_rows: list[int],
    sequences: list[Sequence],
    proposal: Proposal,
    rows: list[int],
    rule: VerificationRule,
) -> tuple[Verdict, list[list[float]]]:
    """Ratio or block rule over sampled rows; delta where the drafts were certain."""
    drafts = [proposal.tokens[row] for row in rows]
    params = [sequences[row].request.params for row in rows]
    keys = [sequences[row].key() for row in rows]
    starts = [first_rows[row] for row in rows]
    drawn_from = None if proposal.probs is None else [proposal.probs[row] for row in rows]
    native = native_for(logits, *([] if proposal.probs is None else [proposal.probs]))
    if native is not None and (drawn_from is None or rule is VerificationRule.RATIO):
        found = native.verify(logits.contiguous(), starts, drafts, drawn_from, params, keys)
        if found is None:
            raise broken_logits()
        return Verdict(found.accepted, found.emitted, found.num_fallbacks), found.probs
    counts = [len(draft) + 1 for draft in drafts]
    flat = processed_probs(
        logits,
        _repeated([p.temperature for p in params], counts),
        _repeated([p.top_k for p in params], counts),
        _repeated([p.top_p for p in params], counts),
        [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)],
    )
    probs = list(torch.split(flat, counts))
    verify = verify_block if rule is VerificationRule.BLOCK else verify_sampled
    verdict = verify(
        probs,
        drafts,
        drawn_from,
        [
            _uniforms(key, count - 1, Purpose.ACCEPT)
            for key, count in zip(keys, counts, strict=True)
        ],
        [_uniforms(key, count, Purpose.EMIT) for key, count in zip(keys, counts, strict=True)],
    )
    return verdict, [
        _probs_of(p, [*draft[:count], token])
        for p, draft, count, token in zip(
            probs, drafts, verdict.num_accepted, verdict.next_tokens, strict=True
        )
    ]


def _uniforms(key: Key, count: int, purpose: Purpose) -> list[float]:
    """For the key's position and those after it."""
    seed, round_index, position = key
    return [uniform(seed, round_index, position + i, purpose) for i in range(count)]


def _probs_of(p: Tensor, tokens: list[int]) -> list[float]:
    """Probability of each token, from [>= len(tokens), vocab]."""
    probs: list[float] = p[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
    return probs


_T = TypeVar("_T", int, float)


def _repeated(values: list[_T], counts: list[int]) -> list[_T]:
    """Each value as often as its row has positions."""
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]

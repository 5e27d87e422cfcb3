"""Lossless acceptance of draft tokens: the definition of correctness, in readable torch.

p is the target's processed distribution, q the one the draft token was drawn from. Output law
equals the target's for every q (Leviathan et al. 2023, section 2.3 and appendix A.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.sampling import sample_from, sample_residual


class Verdict(NamedTuple):
    """Outcome of one round.

    Attributes:
        num_accepted: Accepted draft tokens of each row.
        next_tokens: The token after the accepted ones of each row: recovered after a
            rejection, bonus after none.
        num_fallbacks: Rows whose residual had no mass, so that the target was sampled instead.
    """

    num_accepted: list[int]
    next_tokens: list[int]
    num_fallbacks: int


def verify_greedy(best: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> Verdict:
    """Accept the longest prefix of each draft that the target's argmax agrees with.

    Args:
        best: The target's argmax after each position, one more than the row's draft.
        drafts: Draft tokens of each row.
    """
    accepted: list[int] = []
    following: list[int] = []
    for row, draft in zip(best, drafts, strict=True):
        count = 0
        while count < len(draft) and draft[count] == row[count]:
            count += 1
        accepted.append(count)
        following.append(row[count])
    return Verdict(accepted, following, 0)


def verify_sampled(
    target_probs: Sequence[Tensor] | Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Sequence[Tensor] | Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
) -> Verdict:
    """Ratio rule, or delta rule for deterministic drafts; one pass over a ragged batch.

    Draft i is accepted iff u_i q(d_i) < p(d_i), strictly, so that u = 0 never accepts a token of
    zero target probability. The delta rule is the same with q(d_i) = 1.

    Args:
        target_probs: [>= len(draft) + 1, vocab] float32 for each row, distributions after each
            position. Not modified.
        drafts: Draft tokens of each row.
        draft_probs: [>= len(draft), vocab] for each row, what each draft was drawn from; None when
            the drafts are deterministic.
        accept_uniforms: One uniform per draft token.
        emit_uniforms: One uniform per draft token and one more: the one at the position of the
            first rejection (or of the bonus) samples the emitted token.

    Source: Leviathan et al. 2023, algorithm 1.
    """
    accepted: list[int] = []
    following: list[int] = []
    num_fallbacks = 0
    for row, draft in enumerate(drafts):
        p = target_probs[row]
        q = None if draft_probs is None else draft_probs[row]
        count = _num_accepted(p, q, draft, accept_uniforms[row])
        emit = emit_uniforms[row][count]
        token = None
        if count < len(draft):
            token = sample_residual(p[count], None if q is None else q[count], draft[count], emit)
            num_fallbacks += token is None
        if token is None:
            token = int(sample_from(p[count : count + 1], [emit]))
        accepted.append(count)
        following.append(token)
    return Verdict(accepted, following, num_fallbacks)


def _num_accepted(
    p: Tensor, q: Tensor | None, draft: Sequence[int], uniforms: Sequence[float]
) -> int:
    """How many drafts of a row pass, up to the first that does not."""
    if not draft:
        return 0
    steps, tokens = torch.arange(len(draft), device=p.device), torch.tensor(draft, device=p.device)
    wanted = p[steps, tokens].tolist()
    offered = [1.0] * len(draft) if q is None else q[steps, tokens].tolist()
    count = 0
    while count < len(draft) and uniforms[count] * offered[count] < wanted[count]:
        count += 1
    return count

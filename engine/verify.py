"""Lossless acceptance of draft tokens: the definition of correctness, in readable torch.

p is the target's processed distribution, q the one the draft token was drawn from. Output law
equals the target's for every q (Leviathan et al. 2023, section 2.3 and appendix A.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.sampling import sample_from


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


def residual_probs(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Distribution of the recovered token after a rejection: norm(max(p - q, 0)).

    Args:
        target_probs: [num_tokens, vocab] float32, rows sum to 1. Not modified.
        draft_probs: Same shape; one-hot for deterministic drafts. Not modified.

    Returns:
        [num_tokens, vocab], rows sum to 1. A row with p == q, which only rounding can reject,
        returns p.

    Source: Leviathan et al. 2023, section 2.3.
    """
    residual = (target_probs - draft_probs).clamp_min_(0)
    mass = residual.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, residual / mass, target_probs)


def verify_greedy(best: Tensor, drafts: Sequence[Sequence[int]]) -> Verdict:
    """Accept the longest prefix of each draft that the target's argmax agrees with.

    Args:
        best: [B, Q] int64, the target's argmax after each position; Q > longest draft.
        drafts: Draft tokens of each row.
    """
    accepted: list[int] = []
    following: list[int] = []
    for row, draft in zip(best.tolist(), drafts, strict=True):
        count = 0
        while count < len(draft) and draft[count] == row[count]:
            count += 1
        accepted.append(count)
        following.append(row[count])
    return Verdict(accepted, following, 0)


def verify_sampled(
    target_probs: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
) -> Verdict:
    """Ratio rule, or delta rule for deterministic drafts; one pass over a ragged batch.

    Draft i is accepted iff u_i q(d_i) < p(d_i), strictly, so that u = 0 never accepts a token of
    zero target probability. The delta rule is the same with q(d_i) = 1.

    Args:
        target_probs: [B, Q, vocab] float32, rows sum to 1; row b uses its first len(draft) + 1
            entries. Not modified.
        drafts: Draft tokens of each row.
        draft_probs: [B, >= longest draft, vocab], what each draft was drawn from; None when the
            drafts are deterministic.
        accept_uniforms: One uniform per draft token.
        emit_uniforms: One uniform per draft token and one more: the one at the position of the
            first rejection (or of the bonus) samples the emitted token.

    Source: Leviathan et al. 2023, algorithm 1.
    """
    batch = len(drafts)
    longest = max(len(draft) for draft in drafts)
    accepted = [0] * batch
    if longest:
        padded = torch.tensor(
            [list(draft) + [0] * (longest - len(draft)) for draft in drafts],
            device=target_probs.device,
        ).unsqueeze(2)
        p = target_probs[:, :longest].gather(2, padded).squeeze(2).tolist()
        q = (
            draft_probs[:, :longest].gather(2, padded).squeeze(2).tolist()
            if draft_probs is not None
            else [[1.0] * longest] * batch
        )
        for row, draft in enumerate(drafts):
            while (
                accepted[row] < len(draft)
                and accept_uniforms[row][accepted[row]] * q[row][accepted[row]]
                < p[row][accepted[row]]
            ):
                accepted[row] += 1
    rows = torch.arange(batch, device=target_probs.device)
    emitting = target_probs[rows, torch.tensor(accepted, device=target_probs.device)]
    rejected = [row for row in range(batch) if accepted[row] < len(drafts[row])]
    num_fallbacks = 0
    if rejected:
        index = torch.tensor(rejected, device=target_probs.device)
        q_rows = torch.zeros_like(emitting[index])
        for i, row in enumerate(rejected):
            if draft_probs is None:
                q_rows[i, drafts[row][accepted[row]]] = 1.0
            else:
                q_rows[i] = draft_probs[row, accepted[row]]
        num_fallbacks = int((q_rows >= emitting[index]).all(dim=-1).sum())
        emitting[index] = residual_probs(emitting[index], q_rows)
    uniforms = [emit_uniforms[row][accepted[row]] for row in range(batch)]
    return Verdict(accepted, sample_from(emitting, uniforms).tolist(), num_fallbacks)

"""The block rule: lossless acceptance that looks at all drafts of a round together.

The ratio rule forgets at every token by how much the target prefers the drafts before it. The
block rule carries that surplus along, up to certainty, so that a round never accepts fewer tokens
in expectation, from the same drafts and the same forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.sampling import sample_from, sample_residual
from engine.verify import Verdict, verify_sampled


def verify_block(
    target_probs: Sequence[Tensor] | Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Sequence[Tensor] | Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
) -> Verdict:
    """Block rule, or delta rule for deterministic drafts; one pass over a ragged batch.

    Let P_0 = 1 and P_i = min(1, P_{i-1} p(d_i) / q(d_i)), and Z_i = sum_x max(P_i p(x) - q(x), 0)
    over the distributions after the first i drafts. Accepted are the first i drafts for the
    largest i with u_i < h_i, where h_i = Z_i / (Z_i + 1 - P_i), and h_K = P_K for the last one. A
    rejection after i drafts emits a token of norm(max(P_i p - q, 0)). A round of one draft is that
    of the ratio rule.

    Unlike there, what is accepted depends on later drafts and their uniforms as well, so those of a
    position that is drafted again must be fresh.

    Args:
        target_probs: [>= len(draft) + 1, vocab] float32 for each row, distributions after each
            position. Not modified.
        drafts: Draft tokens of each row.
        draft_probs: [>= len(draft), vocab] float32 for each row, what each draft was drawn from;
            None when the drafts are deterministic, which leaves nothing to carry along.
        accept_uniforms: One uniform per draft token.
        emit_uniforms: As in `verify_sampled`.

    Source: Sun et al. 2024 (arXiv 2403.10444), algorithm 2.
    """
    if draft_probs is None:
        return verify_sampled(target_probs, drafts, None, accept_uniforms, emit_uniforms)
    accepted: list[int] = []
    following: list[int] = []
    num_fallbacks = 0
    for row, draft in enumerate(drafts):
        p, q = target_probs[row], draft_probs[row]
        joint = _joint_probs(p, q, draft)
        count = _num_accepted(p, q, joint, accept_uniforms[row])
        emit = emit_uniforms[row][count]
        token = None
        if count < len(draft):
            token = sample_residual(joint[count] * p[count], q[count], draft[count], emit)
            num_fallbacks += token is None
        if token is None:
            token = int(sample_from(p[count : count + 1], [emit]))
        accepted.append(count)
        following.append(token)
    return Verdict(accepted, following, num_fallbacks)


def _joint_probs(p: Tensor, q: Tensor, draft: Sequence[int]) -> list[float]:
    """P_0..P_K of a row: the chance that at least i drafts are accepted, given these drafts."""
    joint = [1.0]
    steps, tokens = torch.arange(len(draft), device=p.device), torch.tensor(draft, device=p.device)
    if draft:
        wanted, offered = p[steps, tokens].tolist(), q[steps, tokens].tolist()
        for mass, drawn in zip(wanted, offered, strict=True):
            mass *= joint[-1]
            # What the target cannot say has no chance, however the draft came by it.
            joint.append(mass / drawn if mass < drawn else float(mass > 0))
    return joint


def _num_accepted(p: Tensor, q: Tensor, joint: list[float], uniforms: Sequence[float]) -> int:
    """The largest number of drafts whose uniform passes, found from the end."""
    last = len(joint) - 1
    for count in range(last, 0, -1):
        u = uniforms[count - 1]
        # No threshold exceeds P, so most positions need no pass over the vocabulary.
        if u < joint[count] and (count == last or u < _threshold(p[count], q[count], joint[count])):
            return count
    return 0


def _threshold(p: Tensor, q: Tensor, joint: float) -> float:
    """h_i of a position that is not the last.

    Args:
        p: [vocab], the target's distribution after the drafts so far.
        q: [vocab], what the next draft was drawn from.
        joint: P_i, above 0.
    """
    if joint == 1.0:  # also where p = q, so that nothing is left: the next draft passes then
        return 1.0
    left = float((joint * p - q).clamp_min_(0).sum(dtype=torch.float64))
    return left / (left + 1.0 - joint)

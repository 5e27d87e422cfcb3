"""Wrong versions of the block rule, in the frame of `tests.support.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.verify import Verdict
from tests.support.laws import Drafting, best_of, least_of
from tests.support.mutants import Mutant, take

Cap = Callable[[float], float]
"""P of the drafts so far times p / q of the next one -> P with the next one."""
Threshold = Callable[[float, float], float]
"""(mass of the surplus, P) -> h."""
Recover = Callable[[Tensor, Tensor, float], Tensor]
"""(p, q, P) of the position after the accepted drafts -> weights of the recovered token."""
ByCap = Callable[[int, int], bool]
"""(position, K) -> whether h is P itself there."""


def at_most_one(product: float) -> float:
    """The rule."""
    return min(1.0, product)


def share_left(left: float, joint: float) -> float:
    """The rule: Z / (Z + 1 - P), which no longer matters where it is 0 / 0."""
    free = left + 1 - joint
    return left / free if free else 1.0


def surplus(p: Tensor, q: Tensor, joint: float) -> Tensor:
    """The rule: max(P p - q, 0), or p when nothing is left."""
    left = (joint * p - q).clamp_min(0)
    return left if float(left.sum()) > 0 else p


def verify_block_with(
    target_probs: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
    *,
    cap: Cap = at_most_one,
    threshold: Threshold = share_left,
    by_cap: ByCap = int.__eq__,
    strict: bool = True,
    longest: bool = True,
    one_uniform: bool = False,
    recover: Recover = surplus,
    recovered_joint: int = 0,
    normalise: bool = True,
    bonus_row: int = 0,
) -> Verdict:
    """The block rule, row by row, with parts that can be exchanged.

    Args:
        target_probs: As in `engine.verify_block.verify_block`, like the next four.
        drafts: See there.
        draft_probs: See there; never None here.
        accept_uniforms: See there.
        emit_uniforms: See there.
        cap: What keeps P at 1 or below.
        threshold: h of a position that is not judged by P.
        by_cap: Which positions are judged by P.
        strict: u < h, not u <= h.
        longest: Accept up to the last position that passes, not up to the first that fails.
        one_uniform: Judge all positions by the first one's uniform.
        recover: Weights of the recovered token.
        recovered_joint: Offset of the position whose P these weights use.
        normalise: Divide these weights by their sum.
        bonus_row: Offset of the row that the bonus token is drawn from.
    """
    assert draft_probs is not None
    accepted: list[int] = []
    following: list[int] = []
    for row, draft in enumerate(drafts):
        p, q, last = target_probs[row], draft_probs[row], len(draft)
        joint = [1.0]
        passed = []
        for i, token in enumerate(draft):
            joint.append(cap(joint[i] * float(p[i, token]) / float(q[i, token])))
        for i in range(1, last + 1):
            h = joint[i]
            if not by_cap(i, last):
                left = float((joint[i] * p[i] - q[min(i, last - 1)]).clamp_min(0).double().sum())
                h = threshold(left, joint[i])
            u = accept_uniforms[row][0 if one_uniform else i - 1]
            passed.append(u < h if strict else u <= h)
        count = 0
        if longest:
            count = max((i for i, ok in enumerate(passed, start=1) if ok), default=0)
        else:
            while count < last and passed[count]:
                count += 1
        accepted.append(count)
        emit = emit_uniforms[row][count]
        if count == last:
            following.append(take(p[max(count + bonus_row, 0)], emit))
        else:
            weights = recover(p[count], q[count], joint[max(count + recovered_joint, 0)])
            following.append(take(weights, emit, normalise=normalise))
    return Verdict(accepted, following, 0)


def accept_by_ratio(
    target_probs: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
) -> Verdict:
    """Token by token like the ratio rule, but recovered from the block rule's residual."""
    assert draft_probs is not None
    accepted: list[int] = []
    following: list[int] = []
    for row, draft in enumerate(drafts):
        p, q = target_probs[row], draft_probs[row]
        count, joint = 0, 1.0
        while count < len(draft):
            wanted, drawn = float(p[count, draft[count]]), float(q[count, draft[count]])
            if not accept_uniforms[row][count] * drawn < wanted:
                break
            joint = min(1.0, joint * wanted / drawn)
            count += 1
        accepted.append(count)
        weights = p[count] if count == len(draft) else surplus(p[count], q[count], joint)
        following.append(take(weights, emit_uniforms[row][count]))
    return Verdict(accepted, following, 0)


BLOCK_MUTANTS = (
    Mutant(
        name="argmax draft verified against the full q",
        verify=verify_block_with,
        drafting=Drafting(law=best_of, claim=lambda q: q),
    ),
    Mutant(
        name="other deterministic draft verified against a model's q",
        verify=verify_block_with,
        drafting=Drafting(law=least_of, claim=lambda q: q),
    ),
    Mutant(name="acceptance token by token with the block residual", verify=accept_by_ratio),
    Mutant(
        name="running product not capped at 1",
        verify=partial(verify_block_with, cap=float),
    ),
    Mutant(
        name="every position by its running product",
        verify=partial(verify_block_with, by_cap=lambda i, last: True),
    ),
    Mutant(
        name="last position like the others",
        verify=partial(verify_block_with, by_cap=lambda i, last: False),
    ),
    Mutant(
        name="last but one position like the last",
        verify=partial(verify_block_with, by_cap=lambda i, last: i >= last - 1),
    ),
    Mutant(
        name="threshold without 1 - P",
        verify=partial(verify_block_with, threshold=lambda left, joint: left),
    ),
    Mutant(
        name="threshold with 1 in place of 1 - P",
        verify=partial(verify_block_with, threshold=lambda left, joint: left / (left + 1)),
    ),
    Mutant(
        name="up to the first position that fails",
        verify=partial(verify_block_with, longest=False),
    ),
    Mutant(
        name="one uniform for all positions",
        verify=partial(verify_block_with, one_uniform=True),
    ),
    Mutant(
        name="<= in place of <",
        verify=partial(verify_block_with, strict=False),
    ),
    Mutant(
        name="residual of the ratio rule",
        verify=partial(verify_block_with, recover=lambda p, q, joint: surplus(p, q, 1.0)),
    ),
    Mutant(
        name="residual with the running product of the position before",
        verify=partial(verify_block_with, recovered_joint=-1),
    ),
    Mutant(
        name="residual not renormalised",
        verify=partial(verify_block_with, normalise=False),
    ),
    Mutant(
        name="target in place of the residual",
        verify=partial(verify_block_with, recover=lambda p, q, joint: p),
    ),
    Mutant(
        name="softmax of the residual",
        verify=partial(
            verify_block_with,
            recover=lambda p, q, joint: torch.softmax(surplus(p, q, joint), dim=-1),
        ),
    ),
    Mutant(
        name="bonus from the row before",
        verify=partial(verify_block_with, bonus_row=-1),
    ),
)

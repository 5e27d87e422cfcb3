"""The block rule in exact rationals, as `tests.support.laws` has the ratio rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product

from tests.support.laws import (
    Case,
    Cell,
    Chain,
    Dist,
    Drafting,
    Law,
    Tokens,
    draft_cases,
    midpoints,
    token_at,
)


def joint_probs(case: Case) -> list[Fraction]:
    """P_0..P_K."""
    joint = [Fraction(1)]
    for i, token in enumerate(case.draft):
        joint.append(min(Fraction(1), joint[-1] * case.p[i][token] / case.q[i][token]))
    return joint


def surplus(case: Case, joint: Fraction, count: int) -> Dist:
    """max(P p - q, 0) at the position after `count` drafts that are not all."""
    pairs = zip(case.p[count], case.q[count], strict=True)
    return tuple(max(joint * a - b, Fraction(0)) for a, b in pairs)


def thresholds(case: Case) -> list[Fraction]:
    """h_1..h_K. Where p = q after a prefix of P = 1, h does not matter and is 1."""
    joint, last = joint_probs(case), len(case.draft)
    found = []
    for i in range(1, last):
        left = sum(surplus(case, joint[i], i))
        free = left + 1 - joint[i]
        found.append(left / free if free else Fraction(1))
    return [*found, *joint[-1:]] if last else []


def emitting(case: Case, count: int) -> Dist:
    """Law of the token after `count` accepted drafts."""
    return _recovering(case, joint_probs(case)[count], count)


def _recovering(case: Case, joint: Fraction, count: int) -> Dist:
    if count < len(case.draft):
        left = surplus(case, joint, count)
        if mass := sum(left):
            return tuple(x / mass for x in left)
    return case.p[count]


def decide_block(
    case: Case, accept: Sequence[Fraction], emit: Sequence[Fraction]
) -> tuple[int, int]:
    """Accepted drafts and the token after them, by the rule."""
    passed = [i for i, h in enumerate(thresholds(case), start=1) if accept[i - 1] < h]
    count = max(passed, default=0)
    return count, token_at(emitting(case, count), emit[count])


def block_boxes(case: Case, *, wide: bool = False) -> Iterator[Cell]:
    """Boxes on which the rule's decision is constant, as `tests.support.laws.cells`.

    Args:
        case: A row of a verification.
        wide: Cut also where wrong rules have their steps: at P_i, at p/q, and between the tokens
            of p and of the residuals with another P.
    """
    joint, steps = joint_probs(case), []
    for i, h in enumerate(thresholds(case)):
        token = case.draft[i]
        others = [joint[i + 1], case.p[i][token] / case.q[i][token]] if wide else []
        steps.append(midpoints([h, *others]))
    zeros = (Fraction(0),) * len(case.p)
    for point in product(*steps):
        accept = tuple(middle for _, middle in point)
        weight = Fraction(1)
        for width, _ in point:
            weight *= width
        at, _ = decide_block(case, accept, zeros)
        laws = [emitting(case, at)]
        if wide:
            laws += [case.p[at], *(_recovering(case, other, at) for other in joint)]
        for width, middle in midpoints(x for law in laws for x in accumulate(law)):
            yield Cell(weight * width, accept, (*zeros[:at], middle, *zeros[at + 1 :]))


def block_round_law(
    target: Chain, draft: Chain, prefix: Tokens, num_drafts: int, drafting: Drafting
) -> Law:
    """Law of one round's tokens by the formulas; accepted are all of them but the last."""
    law: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for drawn, case in draft_cases(target, draft, prefix, num_drafts, drafting):
        rest = drawn
        chances = [Fraction(1), *thresholds(case)]
        for count in reversed(range(len(chances))):
            here = rest * chances[count]
            rest -= here
            if here:
                for token, share in enumerate(emitting(case, count)):
                    if share:
                        law[(*case.draft[:count], token)] += here * share
    return dict(law)


def mean_accepted(law: Law) -> Fraction:
    """Expected accepted drafts of a round."""
    return sum((weight * (len(tokens) - 1) for tokens, weight in law.items()), Fraction(0))


def survival_given(law: Law, target: Chain, answer: Tokens) -> list[Fraction]:
    """P(at least j drafts are accepted | the output begins with an answer), by Bayes' rule.

    Args:
        law: A round's tokens from the empty prefix; what follows them is the target's.
        target: The target.
        answer: One token more than the round has drafts.

    Returns:
        For j from 0 to the number of drafts.
    """
    chances = [target(answer[:i])[token] for i, token in enumerate(answer)]
    exactly = []
    for count in range(len(answer)):
        weight = law.get(answer[: count + 1], Fraction(0))
        for p in chances[count + 1 :]:
            weight *= p
        exactly.append(weight)
    whole = Fraction(1)
    for p in chances:
        whole *= p
    return [sum(exactly[j:], Fraction(0)) / whole for j in range(len(answer))]

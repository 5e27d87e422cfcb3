"""Exact laws of speculative decoding over tiny vocabularies.

The rule of lossless verification stands here a second time, in rationals. A law is computed
without sampling: every decision is a step function of its uniform, so that one point inside each
step, weighted by the step's width, integrates the decisions of *any* implementation that has
these steps. `round_law` does so for the engine's `verify_sampled` and for the mutants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise, product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.verify import Verdict

Dist = tuple[Fraction, ...]
Tokens = tuple[int, ...]
Chain = Callable[[Tokens], Dist]
"""The distribution of the next token after a prefix."""
Law = dict[Tokens, Fraction]


class Verify(Protocol):
    """The signature of `engine.verify.verify_sampled`."""

    def __call__(
        self,
        target_probs: Tensor,
        drafts: Sequence[Sequence[int]],
        draft_probs: Tensor | None,
        accept_uniforms: Sequence[Sequence[float]],
        emit_uniforms: Sequence[Sequence[float]],
    ) -> Verdict:
        """Accept drafts and choose the tokens after them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How draft tokens come about, and what the verifier is told about it.

    Attributes:
        law: The draft model's distribution -> what the draft token is drawn from.
        claim: The draft model's distribution -> what the verifier takes for it; None is the
            delta rule.
    """

    law: Callable[[Dist], Dist]
    claim: Callable[[Dist], Dist] | None


def dist(*weights: int) -> Dist:
    """The distribution proportional to integer weights."""
    total = sum(weights)
    return tuple(Fraction(weight, total) for weight in weights)


def one_hot(size: int, token: int) -> Dist:
    """Certainty."""
    return tuple(Fraction(int(i == token)) for i in range(size))


def best_of(q: Dist) -> Dist:
    """All mass on the first largest entry: a greedy draft."""
    return one_hot(len(q), q.index(max(q)))


def least_of(q: Dist) -> Dist:
    """All mass on the first smallest entry above 0: a deterministic draft, and a bad one."""
    return one_hot(len(q), q.index(min(x for x in q if x)))


RATIO = Drafting(law=lambda q: q, claim=lambda q: q)
DELTA = Drafting(law=best_of, claim=None)


def table_chain(rows: Sequence[Dist]) -> Chain:
    """A chain whose rows depend on the whole prefix, so that no context can be mistaken."""

    def after(prefix: Tokens) -> Dist:
        return rows[sum((i + 1) * (token + 1) for i, token in enumerate(prefix)) % len(rows)]

    return after


def plain_law(target: Chain, num_tokens: int) -> Law:
    """Law of the first tokens when they are drawn from the target one by one."""
    law: Law = {(): Fraction(1)}
    for _ in range(num_tokens):
        law = {
            (*prefix, token): weight * p
            for prefix, weight in law.items()
            for token, p in enumerate(target(prefix))
            if p
        }
    return law


def output_law(round_at: Callable[[Tokens], Law], num_tokens: int) -> Law:
    """Law of the first tokens when they come in rounds.

    Args:
        round_at: Prefix -> law of the tokens that the round after it emits.
        num_tokens: Tokens of the joint law; what a round emits beyond them is summed out.
    """
    done: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    unfinished: Law = {(): Fraction(1)}
    while unfinished:
        longer: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
        for prefix, weight in unfinished.items():
            for emitted, share in round_at(prefix).items():
                tokens = prefix + emitted
                enough = len(tokens) >= num_tokens
                (done if enough else longer)[tokens[:num_tokens]] += weight * share
        unfinished = longer
    return dict(done)


# ---------------------------------------------------------------- the rule, in closed form


def residual(p: Dist, q: Dist) -> Dist:
    """norm(max(p - q, 0)); p itself when nothing is left."""
    left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    mass = sum(left)
    return tuple(x / mass for x in left) if mass else p


def rule_round_law(
    target: Chain, draft: Chain, prefix: Tokens, num_drafts: int, drafting: Drafting
) -> Law:
    """Law of one round's tokens by the formulas: accept with min(1, p/q), else the residual."""
    law: defaultdict[Tokens, Fraction] = defaultdict(Fraction)

    def go(emitted: Tokens, weight: Fraction) -> None:
        p = target(prefix + emitted)
        if len(emitted) == num_drafts:
            for token, share in enumerate(p):
                if share:
                    law[(*emitted, token)] += weight * share
            return
        model = draft(prefix + emitted)
        for token, drawn in enumerate(drafting.law(model)):
            if not drawn:
                continue
            q = _claimed(drafting, model, token)
            accept = min(Fraction(1), p[token] / q[token])
            if accept:
                go((*emitted, token), weight * drawn * accept)
            if accept < 1:
                for other, share in enumerate(residual(p, q)):
                    if share:
                        law[(*emitted, other)] += weight * drawn * (1 - accept) * share

    go((), Fraction(1))
    return dict(law)


def _claimed(drafting: Drafting, model: Dist, token: int) -> Dist:
    return one_hot(len(model), token) if drafting.claim is None else drafting.claim(model)


# ---------------------------------------------------------------- decisions at given uniforms


class Case(NamedTuple):
    """One row of a verification.

    Attributes:
        p: Target distributions, one more than drafts.
        q: What the verifier takes each draft token to be drawn from.
        draft: Draft tokens.
    """

    p: tuple[Dist, ...]
    q: tuple[Dist, ...]
    draft: Tokens


def token_at(weights: Dist, u: Fraction) -> int:
    """Inverse-CDF sampling."""
    point = u * sum(weights)
    return next(i for i, cumulative in enumerate(accumulate(weights)) if cumulative > point)


def decide(case: Case, accept: Sequence[Fraction], emit: Sequence[Fraction]) -> tuple[int, int]:
    """Accepted drafts and the token after them, by the rule."""
    for i, token in enumerate(case.draft):
        if not accept[i] * case.q[i][token] < case.p[i][token]:
            return i, token_at(residual(case.p[i], case.q[i]), emit[i])
    last = len(case.draft)
    return last, token_at(case.p[last], emit[last])


class Cell(NamedTuple):
    """A box of uniforms on which the rule's decision is constant, and a point inside it.

    Only the emit uniform that the rule uses varies; the others are 0, so that an implementation
    which uses another one emits a constant.
    """

    weight: Fraction
    accept: tuple[Fraction, ...]
    emit: tuple[Fraction, ...]


def midpoints(breaks: Iterable[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """(width, middle) of the intervals that the breakpoints cut [0, 1] into."""
    inside = {x for x in breaks if 0 < x < 1}
    edges = [Fraction(0), *sorted(inside), Fraction(1)]
    return [(high - low, (low + high) / 2) for low, high in pairwise(edges)]


def cells(case: Case) -> Iterator[Cell]:
    """Boxes that fill the unit cube of a row's uniforms."""
    steps = [midpoints([case.p[i][token] / case.q[i][token]]) for i, token in enumerate(case.draft)]
    zeros = (Fraction(0),) * len(case.p)
    for point in product(*steps):
        accept = tuple(middle for _, middle in point)
        weight = Fraction(1)
        for width, _ in point:
            weight *= width
        at, _ = decide(case, accept, zeros)
        rejected = at < len(case.draft)
        emitting = residual(case.p[at], case.q[at]) if rejected else case.p[at]
        for width, middle in midpoints(accumulate(emitting)):
            yield Cell(weight * width, accept, (*zeros[:at], middle, *zeros[at + 1 :]))


def run(verify: Verify, rows: Sequence[tuple[Case, Cell]], *, delta: bool) -> Verdict:
    """Put many rows, each with its uniforms, through an implementation in one batch.

    Args:
        verify: The implementation.
        rows: Rows and uniforms; all of one draft length.
        delta: Tell the implementation nothing about q: the delta rule.
    """
    q = None if delta else _tensor([case.q for case, _ in rows])
    return verify(
        _tensor([case.p for case, _ in rows]),
        [case.draft for case, _ in rows],
        q,
        [[float(u) for u in cell.accept] for _, cell in rows],
        [[float(u) for u in cell.emit] for _, cell in rows],
    )


def _tensor(rows: Sequence[Sequence[Dist]]) -> Tensor:
    return torch.tensor(
        [[[float(x) for x in distribution] for distribution in row] for row in rows],
        dtype=torch.float32,
    )


def round_law(
    verify: Verify,
    target: Chain,
    draft: Chain,
    prefix: Tokens,
    num_drafts: int,
    drafting: Drafting,
    boxes: Callable[[Case], Iterator[Cell]] = cells,
) -> Law:
    """Law of one round's tokens, integrated from an implementation's own decisions.

    Args:
        verify: The implementation.
        target: The target.
        draft: The draft model.
        prefix: Tokens before the round.
        num_drafts: K.
        drafting: How drafts come about.
        boxes: The steps of the rule that the implementation follows.
    """
    rows: list[tuple[Case, Cell]] = []
    weights: list[Fraction] = []
    for drawn, case in draft_cases(target, draft, prefix, num_drafts, drafting):
        for cell in boxes(case):
            rows.append((case, cell))
            weights.append(drawn * cell.weight)
    verdict = run(verify, rows, delta=drafting.claim is None)
    law: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for (case, _), weight, accepted, token in zip(
        rows, weights, verdict.num_accepted, verdict.next_tokens, strict=True
    ):
        law[(*case.draft[:accepted], token)] += weight
    return dict(law)


def draft_cases(
    target: Chain, draft: Chain, prefix: Tokens, num_drafts: int, drafting: Drafting
) -> Iterator[tuple[Fraction, Case]]:
    """Every sequence of draft tokens that can be drawn, with its probability."""
    sequences: list[tuple[Fraction, Tokens, tuple[Dist, ...]]] = [(Fraction(1), (), ())]
    for _ in range(num_drafts):
        sequences = [
            (
                weight * drawn,
                (*tokens, token),
                (*claims, _claimed(drafting, draft(prefix + tokens), token)),
            )
            for weight, tokens, claims in sequences
            for token, drawn in enumerate(drafting.law(draft(prefix + tokens)))
            if drawn
        ]
    for weight, tokens, claims in sequences:
        p = tuple(target(prefix + tokens[:i]) for i in range(num_drafts + 1))
        yield weight, Case(p, claims, tokens)

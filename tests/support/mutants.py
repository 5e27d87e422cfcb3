"""Wrong acceptance rules, kept so that tests can show they would notice them.

Each was published somewhere as a working implementation. `verify_with` is the rule with its parts
exchangeable; with none exchanged it is correct, which is the control of the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.drafters.base import Drafter, Proposal
from engine.request import Sequence as Running
from engine.rng import Purpose, uniform
from engine.verify import Verdict
from tests.support.laws import DELTA, RATIO, Drafting, Verify, best_of, least_of

Accept = Callable[[float, float, float], bool]
"""(uniform, q of the token, p of the token) -> accepted."""
Recover = Callable[[Tensor, Tensor], Tensor]
"""(p, q) of the rejected position -> weights of the recovered token."""


def accept_if_less(u: float, q: float, p: float) -> bool:
    """The rule."""
    return u * q < p


def left_over(p: Tensor, q: Tensor) -> Tensor:
    """The rule: max(p - q, 0), or p when nothing is left."""
    left = (p - q).clamp_min(0)
    return left if float(left.sum()) > 0 else p


def take(weights: Tensor, u: float, *, normalise: bool = True) -> int:
    """Inverse-CDF sampling; unnormalised weights send what is missing to the last token."""
    cumulative = weights.double().cumsum(0).tolist()
    point = u * cumulative[-1] if normalise else u
    return next((i for i, c in enumerate(cumulative) if c > point), len(cumulative) - 1)


def verify_with(
    target_probs: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Tensor | None,
    accept_uniforms: Sequence[Sequence[float]],
    emit_uniforms: Sequence[Sequence[float]],
    *,
    accept: Accept = accept_if_less,
    recover: Recover = left_over,
    normalise: bool = True,
    recovered_row: int = 0,
    bonus_row: int = 0,
    emit_from_accept: bool = False,
) -> Verdict:
    """The verification rule, row by row, with parts that can be exchanged.

    Args:
        target_probs: As in `engine.verify.verify_sampled`, like the next four.
        drafts: See there.
        draft_probs: See there.
        accept_uniforms: See there.
        emit_uniforms: See there.
        accept: Acceptance test.
        recover: Weights of the recovered token.
        normalise: Divide these weights by their sum.
        recovered_row: Offset of the row that the recovered token's p is read from.
        bonus_row: Offset of the row that the bonus token is drawn from.
        emit_from_accept: Use the rejecting uniform for the recovered token as well.
    """
    accepted: list[int] = []
    following: list[int] = []
    for row, draft in enumerate(drafts):
        p = target_probs[row]
        if draft_probs is not None:
            q = draft_probs[row]
        else:
            q = torch.nn.functional.one_hot(
                torch.tensor(list(draft), dtype=torch.int64), p.shape[1]
            ).to(p.dtype)
        count = 0
        while count < len(draft) and accept(
            accept_uniforms[row][count],
            float(q[count, draft[count]]),
            float(p[count, draft[count]]),
        ):
            count += 1
        accepted.append(count)
        if count == len(draft):
            weights = p[max(count + bonus_row, 0)]
            following.append(take(weights, emit_uniforms[row][count]))
        else:
            weights = recover(p[max(count + recovered_row, 0)], q[count])
            uniforms = accept_uniforms if emit_from_accept else emit_uniforms
            following.append(take(weights, uniforms[row][count], normalise=normalise))
    return Verdict(accepted, following, 0)


def _zero_the_draft_only(p: Tensor, q: Tensor) -> Tensor:
    """The delta rule's residual, whatever q was: the most likely draft token loses its mass."""
    return torch.where(q == q.max(), 0.0, p)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong way to draft and verify.

    Attributes:
        name: What is wrong.
        verify: The verification.
        drafting: How drafts are drawn and declared.
    """

    name: str
    verify: Verify
    drafting: Drafting = RATIO


MUTANTS = (
    Mutant(
        name="argmax draft verified against the full q",
        verify=verify_with,
        drafting=Drafting(law=best_of, claim=lambda q: q),
    ),
    Mutant(
        name="other deterministic draft verified against a model's q",
        verify=verify_with,
        drafting=Drafting(law=least_of, claim=lambda q: q),
    ),
    Mutant(
        name="<= in place of <",
        verify=partial(verify_with, accept=lambda u, q, p: u * q <= p),
    ),
    Mutant(
        name="every draft accepted",
        verify=partial(verify_with, accept=lambda u, q, p: True),
    ),
    Mutant(
        name="p in place of p / q",
        verify=partial(verify_with, accept=lambda u, q, p: u < p),
    ),
    Mutant(
        name="ratio upside down",
        verify=partial(verify_with, accept=lambda u, q, p: u * p < q),
    ),
    Mutant(
        name="residual not renormalised",
        verify=partial(verify_with, normalise=False),
    ),
    Mutant(
        name="softmax of the residual",
        verify=partial(verify_with, recover=lambda p, q: torch.softmax(left_over(p, q), dim=-1)),
    ),
    Mutant(
        name="target in place of the residual",
        verify=partial(verify_with, recover=lambda p, q: p),
    ),
    Mutant(
        name="target in place of the residual, delta rule",
        verify=partial(verify_with, recover=lambda p, q: p),
        drafting=DELTA,
    ),
    Mutant(
        name="absolute difference as residual",
        verify=partial(verify_with, recover=lambda p, q: (p - q).abs()),
    ),
    Mutant(
        name="residual of the delta rule under the ratio rule",
        verify=partial(verify_with, recover=_zero_the_draft_only),
    ),
    Mutant(
        name="bonus from the row before",
        verify=partial(verify_with, bonus_row=-1),
    ),
    Mutant(
        name="recovered from the row before",
        verify=partial(verify_with, recovered_row=-1),
    ),
    Mutant(
        name="recovered from the row after",
        verify=partial(verify_with, recovered_row=1),
    ),
    Mutant(
        name="one uniform to reject and to recover",
        verify=partial(verify_with, emit_from_accept=True),
    ),
)


class ArgmaxDraft:
    """Replaces the first draft token by the most likely one, and still hands in the full q."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.feature_layers = drafter.feature_layers
        self.admit = drafter.admit
        self.ingest = drafter.ingest
        self.snapshot = drafter.snapshot
        self.restore = drafter.restore
        self.num_bytes = drafter.num_bytes
        self._drafter = drafter

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """One draft token per row, the argmax of its q."""
        limits = [min(limit, 1) for limit in limits]
        proposal = self._drafter.propose(slots, sequences, limits, draft_temperature)
        assert proposal.probs is not None
        return Proposal([[int(q[0].argmax())] for q in proposal.probs], proposal.probs)


class ReseededEachRound:
    """A generator that starts anew in every round: the same noise at the same offset."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}

    def __call__(self, seed: int, round_index: int, position: int, purpose: Purpose) -> float:
        """Stands in for `engine.rng.uniform`."""
        first = self._first.setdefault((seed, round_index), position)
        return uniform(seed, 0, position - first, purpose)


class KeyedByPosition:
    """A generator that knows the position alone: a token drafted again meets its old noise."""

    def __call__(self, seed: int, round_index: int, position: int, purpose: Purpose) -> float:
        """Stands in for `engine.rng.uniform`."""
        return uniform(seed, 0, position, purpose)

"""Expected counts of speculative rounds along a known answer, by slow second implementations.

A profile says from every start t of an answer: the chances W_t(1), W_t(2), ... to accept that
many drafts at least, and how many drafts the round verifies. `enumerate_rounds` walks through
every possible course of rounds, `expected_rounds` evaluates the recursion of the theory; both in
exact fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch

from engine.profile import StartProfile

Survival = Sequence[Sequence[Fraction]]


@dataclass(frozen=True, slots=True)
class Course:
    """One possible course of rounds: where they start, and what each accepts."""

    probability: Fraction
    starts: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """Means over all courses."""

    num_rounds: Fraction
    num_rounds_by_drafts: tuple[Fraction, ...]
    num_accepted_per_pos: tuple[Fraction, ...]
    visits: tuple[Fraction, ...]


def start_profile(survival: Survival, num_proposed: Sequence[int], k_max: int) -> StartProfile:
    """The engine's form of a profile."""
    rows = [[float(w) for w in row] for row in survival]
    return StartProfile(
        torch.tensor(rows, dtype=torch.float64).reshape(len(rows), k_max),
        torch.tensor(list(num_proposed), dtype=torch.int64),
    )


def reach(survival: Survival, num_proposed: Sequence[int], start: int, j: int, k: int) -> Fraction:
    """W_start(j) of a round with at most `k` drafts."""
    if j == 0:
        return Fraction(1)
    return survival[start][j - 1] if j <= min(num_proposed[start], k) else Fraction(0)


def courses(
    survival: Survival, num_proposed: Sequence[int], k: int, start: int = 0
) -> Iterator[Course]:
    """Every course from a start to the end, with its probability."""
    if start >= len(num_proposed):
        yield Course(Fraction(1), (), ())
        return
    for j in range(min(num_proposed[start], k) + 1):
        exactly = reach(survival, num_proposed, start, j, k) - reach(
            survival, num_proposed, start, j + 1, k
        )
        if exactly:
            for rest in courses(survival, num_proposed, k, start + j + 1):
                yield Course(exactly * rest.probability, (start, *rest.starts), (j, *rest.accepted))


def enumerate_rounds(survival: Survival, num_proposed: Sequence[int], k: int) -> ExpectedCounts:
    """Means over all courses, one by one."""
    rounds = Fraction(0)
    by_drafts = [Fraction(0)] * (k + 1)
    per_pos = [Fraction(0)] * k
    visits = [Fraction(0)] * len(num_proposed)
    total = Fraction(0)
    for course in courses(survival, num_proposed, k):
        total += course.probability
        rounds += course.probability * len(course.starts)
        for start, accepted in zip(course.starts, course.accepted, strict=True):
            visits[start] += course.probability
            by_drafts[min(num_proposed[start], k)] += course.probability
            for position in range(accepted):
                per_pos[position] += course.probability
    assert total == 1
    return ExpectedCounts(rounds, tuple(by_drafts), tuple(per_pos), tuple(visits))


def expected_rounds(survival: Survival, num_proposed: Sequence[int], k: int) -> Fraction:
    """R(0) by R(t) = 1 + sum_j (W_t(j) - W_t(j + 1)) R(t + j + 1), R beyond the end being 0."""

    @cache
    def rounds_from(start: int) -> Fraction:
        if start >= len(num_proposed):
            return Fraction(0)
        return 1 + sum(
            (
                (
                    reach(survival, num_proposed, start, j, k)
                    - reach(survival, num_proposed, start, j + 1, k)
                )
                * rounds_from(start + j + 1)
                for j in range(min(num_proposed[start], k) + 1)
            ),
            Fraction(0),
        )

    return rounds_from(0)

"""The change detector against its definition as a sum over all starting times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from policies.change import Alarm, ChangeDetector, Direction

STAKES = (Fraction(1, 10), Fraction(3, 10), Fraction(6, 10), Fraction(95, 100))
START = ChangeDetector(average_run_length=1000, clip=0.125, tolerance=0.0)


def run(detector: ChangeDetector, values: Iterable[float]) -> ChangeDetector:
    """The detector after all values."""
    for value in values:
        detector = detector.update(value)
    return detector


def noise(seed: int, n: int) -> list[float]:
    """Normal log ratios around 0."""
    random = Random(seed)
    return [random.gauss(0, 0.05) for _ in range(n)]


def money_by_definition(pays: Sequence[Fraction]) -> list[Fraction]:
    """For each stake, the sum over all starting times of what a bet begun then holds now."""
    return [
        sum(
            (
                math.prod((1 + stake * pay for pay in pays[start:]), start=Fraction(1))
                for start in range(len(pays))
            ),
            Fraction(0),
        )
        for stake in STAKES
    ]


def test_money_is_a_sum_over_starting_times() -> None:
    """The recursion equals Shiryaev and Roberts' sum, in exact fractions."""
    values = [0.0625, -0.125, 0.03125, 7.0, -0.0625, 0.125]
    pays = [Fraction(value / 0.125) if value < 1 else Fraction(1) for value in values]
    found = run(START, values)
    assert found.up == pytest.approx([float(m) for m in money_by_definition(pays)], rel=1e-13)
    mirrored = [-pay for pay in pays]
    assert found.down == pytest.approx([float(m) for m in money_by_definition(mirrored)], rel=1e-13)
    assert found.num_observations == 6
    assert found.alarm is None


def test_nobody_can_expect_more_than_was_handed_out() -> None:
    """Over all 4^5 equally likely sequences of a symmetric law the mean money is the time."""
    outcomes = (0.02, -0.02, 0.6, -0.6)
    ends = [run(START, path) for path in product(outcomes, repeat=5)]
    for stake in range(len(STAKES)):
        mean = math.fsum(end.up[stake] + end.down[stake] for end in ends) / len(ends)
        assert mean == pytest.approx(10.0, rel=1e-12)


@pytest.mark.parametrize("direction", list(Direction))
def test_alarm_when_the_money_reaches_twice_the_run_length(direction: Direction) -> None:
    """With full wins alone the alarm comes at the first time the sum allows it."""
    sign = 1 if direction is Direction.UP else -1
    wins = next(
        n
        for n in range(1, 99)
        if sum(money_by_definition([Fraction(1)] * n)) / 4 >= 2 * START.average_run_length
    )
    before = run(START, [sign * 5.0] * (wins - 1))
    assert before.alarm is None
    after = before.update(sign * 5.0)
    assert after.alarm == Alarm(direction=direction, observation=wins)
    assert sum(after.up) / 4 < 4 * START.average_run_length


def test_an_alarm_ends_the_detector() -> None:
    """Later observations, even in the other direction, change nothing."""
    rung = run(START, [-1.0] * 30)
    assert rung.alarm == Alarm(direction=Direction.DOWN, observation=rung.num_observations)
    assert run(rung, [1.0] * 100) is rung


def test_the_tolerance_is_no_change() -> None:
    """A level at the tolerance never alarms without noise; one beyond it does."""
    detector = replace(START, tolerance=0.02)
    assert run(detector, [0.02] * 900).alarm is None
    assert run(detector, [-0.02] * 900).alarm is None
    up = run(detector, [0.05] * 900).alarm
    down = run(detector, [-0.05] * 900).alarm
    assert up
    assert down
    assert up.direction is Direction.UP
    assert down.direction is Direction.DOWN
    assert up.observation == down.observation


def test_pay_is_clipped() -> None:
    """One wild observation moves the money by one full win, in either direction."""
    values = noise(1, 20)
    state = run(START, values)
    assert state.update(1e9) == state.update(0.125)
    assert state.update(-1e9) == state.update(-0.125)


def test_updates_leave_the_old_state_alone() -> None:
    """A detector can be stored and continued from its attributes."""
    values = noise(2, 40)
    middle = run(START, values[:20])
    again = ChangeDetector(
        average_run_length=1000,
        clip=0.125,
        tolerance=0.0,
        num_observations=middle.num_observations,
        up=middle.up,
        down=middle.down,
    )
    assert run(again, values[20:]) == run(START, values)
    assert START.up == (0.0,) * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("average_run_length", 0.5),
        ("average_run_length", math.inf),
        ("average_run_length", math.nan),
        ("clip", 0.0),
        ("clip", math.inf),
        ("clip", math.nan),
        ("tolerance", -0.01),
        ("tolerance", math.inf),
        ("tolerance", math.nan),
        ("up", (0.0,)),
        ("down", (0.0,) * 5),
    ],
)
def test_attributes_are_checked(name: str, value: object) -> None:
    """An attribute out of its range is named."""
    with pytest.raises(ValueError, match=name):
        replace(START, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_observations_must_be_finite(value: float) -> None:
    """A value that is no number is refused, before and after an alarm."""
    for detector in (START, run(START, [1.0] * 30)):
        with pytest.raises(ValueError, match="value = "):
            detector.update(value)

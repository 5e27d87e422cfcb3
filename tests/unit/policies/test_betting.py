"""Evidence by betting against arithmetic by hand, brute force and exact enumeration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from policies.betting import (
    BOUND_STEP,
    FRACTIONS,
    evidence_above,
    evidence_below,
    is_above,
    is_below,
    lower_bound,
    upper_bound,
)

STAKES = (Fraction(1, 10), Fraction(3, 10), Fraction(6, 10), Fraction(95, 100))


def wealth_by_definition(values: Sequence[float], bound: float) -> float:
    """The wealth after the last block, written out with the library's standard deviation."""
    parts = []
    for stake in (0.1, 0.3, 0.6, 0.95):
        wealth = 1.0
        for i, value in enumerate(values):
            clip = 0.125
            if i >= 4:
                clip = min(0.25, max(0.01, 2 * statistics.stdev(values[:i])))
            wealth *= 1 + stake * min(1.0, max(-1.0, (value - bound) / clip))
        parts.append(wealth)
    return sum(parts) / 4


def noise(seed: int, n: int, sd: float, centre: float = 0.0) -> list[float]:
    """Normal log ratios."""
    random = Random(seed)
    return [random.gauss(centre, sd) for _ in range(n)]


@pytest.mark.parametrize(
    ("values", "pays"),
    [
        ([], []),
        ([0.0], [Fraction(0)]),
        ([0.125], [Fraction(1)]),
        ([0.0625, -0.125, 0.03125], [Fraction(1, 2), Fraction(-1), Fraction(1, 4)]),
        ([7.0, -7.0, 0.125], [Fraction(1), Fraction(-1), Fraction(1)]),
    ],
)
def test_first_blocks_in_exact_arithmetic(values: list[float], pays: list[Fraction]) -> None:
    """The e-value of a few blocks, whose clip is 1/8, in fractions."""
    parts = [Fraction(1)] * len(STAKES)
    for pay in pays:
        parts = [part * (1 + stake * pay) for part, stake in zip(parts, STAKES, strict=True)]
    expected = math.log(sum(parts) / len(parts))
    assert evidence_above(values, 0.0) == pytest.approx(expected, abs=1e-14)


def test_one_block_by_hand() -> None:
    """A full win multiplies the wealth by 1 + (0.1 + 0.3 + 0.6 + 0.95) / 4 = 1.4875."""
    assert math.exp(evidence_above([1.0], 0.0)) == pytest.approx(1.4875, rel=1e-14)
    assert math.exp(evidence_above([-1.0], 0.0)) == pytest.approx(0.5125, rel=1e-14)


@pytest.mark.parametrize("sd", [0.0, 0.002, 0.03, 0.09, 3.0])
@pytest.mark.parametrize("bound", [0.0, 0.02, -0.3])
def test_clip_follows_earlier_blocks(sd: float, bound: float) -> None:
    """From the fifth block on the clip is twice the earlier blocks' deviation, within limits."""
    values = noise(1, 40, sd, 0.01)
    expected = math.log(wealth_by_definition(values, bound))
    assert evidence_above(values, bound) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("law", [(0.02, 0.3), (0.05, 4.0), (0.001, 0.01)])
def test_fair_under_every_symmetric_law(law: tuple[float, float]) -> None:
    """Expected wealth over all sequences of a law symmetric about the bound is 1.

    Both sizes have either sign with equal probability, so all 4^6 sequences are equally
    likely; a clip that looked at its own block would break this.
    """
    outcomes = [centred + 0.01 for size in law for centred in (size, -size)]
    wealths = [math.exp(evidence_above(path, 0.01)) for path in product(outcomes, repeat=6)]
    assert math.fsum(wealths) / len(wealths) == pytest.approx(1.0, rel=1e-12)


def test_error_probability_on_a_small_law() -> None:
    """Of all 2^13 sequences of +-0.1, a share of alpha at most ever rejects the true centre."""
    paths = list(product((0.1, -0.1), repeat=13))
    share = sum(is_above(path, 0.0, 0.05) for path in paths) / len(paths)
    assert 0 < share <= 0.05


def test_rejects_exactly_at_one_over_alpha() -> None:
    """The wealth of eight full wins decides down to its own reciprocal and no further."""
    values = [1.0] * 8
    wealth = float(sum((1 + stake) ** 8 for stake in STAKES) / 4)
    assert is_above(values, 0.0, 1.000001 / wealth)
    assert not is_above(values, 0.0, 0.999999 / wealth)
    assert not is_above(values[:7], 0.0, 0.05 / 3)
    assert is_above(values, 0.0, 0.05 / 3)
    assert is_above(values[:7], 0.0, 0.05)
    assert not is_above(values[:6], 0.0, 0.05)


def test_an_outlier_counts_like_one_clip() -> None:
    """A last block beyond the clip weighs the same however far off it is."""
    values = noise(2, 20, 0.05)
    modest = evidence_above([*values, 0.26], 0.0)
    assert evidence_above([*values, 900.0], 0.0) == pytest.approx(modest, abs=1e-12)
    assert evidence_above([*values, 900.0], 0.0) - evidence_above(values, 0.0) < math.log(1.95)
    assert lower_bound([900.0, *values], 0.05) > -0.1
    assert upper_bound([-900.0, *values], 0.05) < 0.1


def test_nobody_goes_broke() -> None:
    """After thousands of lost or won bets the evidence is still the exact logarithm."""
    assert all(0 < fraction < 1 for fraction in FRACTIONS)
    assert sum(FRACTIONS) == pytest.approx(float(sum(STAKES)))
    lost = evidence_above([-1.0] * 5000, 0.0)
    assert lost == pytest.approx(5000 * math.log(0.9) - math.log(4), rel=1e-9)
    won = evidence_above([1.0] * 5000, 0.0)
    assert won == pytest.approx(5000 * math.log(1.95) - math.log(4), rel=1e-9)


def test_a_decision_outlives_later_evidence() -> None:
    """The highest wealth so far decides, and the bound keeps what it once had."""
    values = [0.3] * 10 + [-0.3] * 10
    assert evidence_above(values, 0.0) < 0
    assert is_above(values, 0.0, 0.05)
    assert lower_bound(values, 0.05) == lower_bound(values[:10], 0.05) > 0


def test_not_above_is_not_below() -> None:
    """The two directions use opposite signs and their own wealth."""
    values = [0.3] * 10
    assert is_above(values, 0.0, 0.05)
    assert not is_below(values, 0.0, 0.05)
    assert is_below([-value for value in values], 0.0, 0.05)
    assert evidence_below(values, 0.35) == evidence_above([-0.3] * 10, -0.35) > 0
    assert evidence_below(values, 0.25) < 0


def test_bounds_hold_what_the_test_rejects() -> None:
    """The lower bound is the largest rejected bound, the upper one its mirror image."""
    values = noise(3, 60, 0.067, 0.08)
    low, high = lower_bound(values, 0.025), upper_bound(values, 0.025)
    assert is_above(values, low, 0.025)
    assert not is_above(values, low + 2 * BOUND_STEP, 0.025)
    assert is_below(values, high, 0.025)
    assert not is_below(values, high - 2 * BOUND_STEP, 0.025)
    assert low < 0.08 < high
    assert high - low < 0.1


def test_bounds_only_get_better() -> None:
    """As blocks are added the lower bound never falls and the upper one never rises."""
    values = noise(4, 60, 0.067)
    lows = [lower_bound(values[:n], 0.05) for n in range(0, 61, 4)]
    highs = [upper_bound(values[:n], 0.05) for n in range(0, 61, 4)]
    assert lows == sorted(lows)
    assert highs == sorted(highs, reverse=True)
    assert math.isfinite(lows[-1])
    assert math.isfinite(highs[-1])


@pytest.mark.parametrize("shift", [0.5, -2.0])
def test_bounds_move_with_the_blocks(shift: float) -> None:
    """Shifting all blocks shifts the bounds and changes nothing else."""
    values = noise(5, 30, 0.05)
    moved = [value + shift for value in values]
    assert lower_bound(moved, 0.05) == pytest.approx(lower_bound(values, 0.05) + shift, abs=1e-8)
    assert upper_bound(moved, 0.05) == pytest.approx(upper_bound(values, 0.05) + shift, abs=1e-8)


def test_evidence_falls_as_the_bound_rises() -> None:
    """Monotone in the bound, so that what is not rejected is a half-line."""
    values = noise(6, 50, 0.067)
    found = [evidence_above(values, bound / 100) for bound in range(-40, 41)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 25 > 0 > found[-1]


def test_few_blocks_bound_nothing() -> None:
    """Without enough blocks even the clearest gain has no finite bound."""
    assert lower_bound([], 0.05) == -math.inf
    assert upper_bound([], 0.05) == math.inf
    assert lower_bound([0.3] * 6, 0.05) == -math.inf
    assert lower_bound([0.3] * 7, 0.05) > -math.inf
    assert not is_above([], -9.0, 0.5)
    assert evidence_above([], 0.0) == 0.0
    assert lower_bound([1400.0, -1400.0] * 40, 0.05) < 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1501.0])
def test_values_must_be_log_ratios(bad: float) -> None:
    """The offending block or bound is named."""
    for function in (evidence_above, evidence_below):
        with pytest.raises(ValueError, match="block 1 = "):
            function([0.0, bad], 0.0)
        with pytest.raises(ValueError, match="bound = "):
            function([0.0], bad)
    for bound_of in (lower_bound, upper_bound):
        with pytest.raises(ValueError, match="block 0 = "):
            bound_of([bad], 0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_alpha_must_be_a_probability(alpha: float) -> None:
    """Levels outside of (0, 1) are refused."""
    for test in (is_above, is_below):
        with pytest.raises(ValueError, match="alpha"):
            test([0.0], 0.0, alpha)
    for bound_of in (lower_bound, upper_bound):
        with pytest.raises(ValueError, match="alpha"):
            bound_of([0.0], alpha)

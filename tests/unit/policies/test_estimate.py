"""Paired estimates and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import NormalDist, stdev

import pytest
from scipy import stats

from policies.estimate import (
    Total,
    comparable,
    confidence_interval,
    difference_interval,
    gain,
    log_ratio,
    lower_bound,
    paired_estimate,
    upper_bound,
    weighted_sum,
)
from policies.types import Block, PairedEstimate
from tests.unit.policies.builders import blocks_from_rates, estimate


def test_gain_is_a_ratio_of_sums() -> None:
    """Long blocks weigh more: tokens and seconds are summed before dividing."""
    found = paired_estimate(
        [
            Block(baseline_tokens=100, baseline_s=1.0, candidate_tokens=300, candidate_s=1.0),
            Block(baseline_tokens=300, baseline_s=3.0, candidate_tokens=300, candidate_s=3.0),
        ]
    )
    assert found.baseline_tokens_per_s == pytest.approx(100)
    assert found.candidate_tokens_per_s == pytest.approx(150)
    assert found.log_gain == pytest.approx(math.log(1.5))
    assert found.num_blocks == 2


def test_jackknife_by_hand() -> None:
    """Equal baselines and candidates 110, 120, 130: replicates are logs of pair means."""
    found = paired_estimate(blocks_from_rates([100, 100, 100], [110, 120, 130]))
    replicates = [math.log(1.25), math.log(1.2), math.log(1.15)]
    centre = sum(replicates) / 3
    expected = math.sqrt(2 / 3 * sum((value - centre) ** 2 for value in replicates))
    assert found.std_error == pytest.approx(expected, rel=1e-12)


def test_shared_clock_cancels() -> None:
    """A machine that slows down for both arms of a block leaves gain and error untouched."""
    found = paired_estimate(blocks_from_rates([100, 50, 80], [120, 60, 96]))
    assert gain(found.log_gain) == pytest.approx(0.2)
    assert found.std_error == pytest.approx(0, abs=1e-12)


def test_one_dominant_block_is_survived() -> None:
    """A block 1e18 times longer than the others leaves a finite standard error."""
    small = Block(baseline_tokens=1, baseline_s=1e-6, candidate_tokens=2, candidate_s=1e-6)
    huge = Block(baseline_tokens=10**18, baseline_s=1e12, candidate_tokens=10**18, candidate_s=1e12)
    found = paired_estimate([small, huge, small])
    assert math.isfinite(found.std_error)
    assert found.log_gain == pytest.approx(0, abs=1e-9)


def lucky_blocks(luck: Sequence[float], expected: float = 120.0) -> list[Block]:
    """Blocks of equal work whose emitted tokens are off what is expected by some factors."""
    return [
        Block(
            baseline_tokens=100.0,
            baseline_s=1.0,
            candidate_tokens=120.0 * factor,
            candidate_s=1.0,
            expected_tokens=expected,
        )
        for factor in luck
    ]


def test_luck_with_drafts_is_no_noise() -> None:
    """Blocks that took the same time tell the same, whatever they happened to accept."""
    found = paired_estimate(lucky_blocks([0.9, 1.1, 1.05, 0.97]), request_std_error=0.01)
    assert gain(found.log_gain) == pytest.approx(0.2)
    assert found.std_error == pytest.approx(0.01)
    assert found.log_ratios == pytest.approx([math.log(1.2)] * 4)


def test_time_is_noise_still() -> None:
    """The spread of the rounds' times remains, block by block."""
    blocks = [
        replace(block, candidate_s=seconds, expected_tokens=150.0)
        for block, seconds in zip(lucky_blocks([1.0] * 3), (1.0, 1.1, 1.2), strict=True)
    ]
    assert paired_estimate(blocks) == paired_estimate(
        [replace(block, candidate_tokens=150.0, expected_tokens=None) for block in blocks]
    )


def test_one_block_without_an_expectation_counts_all_by_what_they_emitted() -> None:
    """Blocks are compared by one measure."""
    blocks = lucky_blocks([1.0, 1.0, 1.0])
    mixed = [*blocks[:2], replace(blocks[2], expected_tokens=None)]
    assert gain(paired_estimate(mixed).log_gain) == pytest.approx(0.2)
    expected_elsewhere = lucky_blocks([1.0, 1.0, 1.0], expected=300.0)
    mixed = [*expected_elsewhere[:2], replace(blocks[2], expected_tokens=None)]
    assert gain(paired_estimate(mixed).log_gain) == pytest.approx(0.2)


def test_replay_that_is_contradicted_does_not_count() -> None:
    """Expected 30 % more than is ever emitted: beyond chance, so emitted tokens count."""
    luck = [0.98, 1.02, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0]
    found = paired_estimate(lucky_blocks(luck, expected=156.0), request_std_error=0.02)
    assert gain(found.log_gain) == pytest.approx(0.2)
    assert len(set(found.log_ratios)) > 1


def test_replay_within_its_own_error_is_believed() -> None:
    """Expected 5 % more, with a standard error of 2 % from the choice of requests."""
    luck = [0.98, 1.02, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0]
    found = paired_estimate(lucky_blocks(luck, expected=126.0), request_std_error=0.02)
    assert gain(found.log_gain) == pytest.approx(0.26)


def test_honest_replay_is_hardly_ever_contradicted() -> None:
    """Null: emitted tokens are on average what is expected; n = 2,000 series of 10 blocks.

    Contradictions at 4 standard errors of 9 degrees of freedom: 0.31 % expected, at most 1.0 %
    allowed (alpha < 1e-4). Power: a replay that is 14 % off is contradicted in over 99 %.
    """
    random = Random(7)

    def contradicted(bias: float) -> int:
        times = 0
        for _ in range(2000):
            luck = [math.exp(bias + random.gauss(0, 0.05)) for _ in range(10)]
            kept = comparable(lucky_blocks(luck))
            times += kept[0].candidate_tokens != 120.0
        return times

    assert contradicted(0.0) <= 20
    assert contradicted(0.13) >= 1980


@pytest.mark.parametrize("expected", [0.0, -1.0, math.nan])
def test_an_expectation_of_nothing_is_refused(expected: float) -> None:
    """What is expected must be tokens."""
    with pytest.raises(ValueError, match="tokens from both arms"):
        lucky_blocks([1.0], expected=expected)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_blocks_are_refused(count: int) -> None:
    """One block says nothing about its own spread."""
    blocks = blocks_from_rates([100.0] * count, [110.0] * count)
    with pytest.raises(ValueError, match=f"{count} blocks: at least 2"):
        paired_estimate(blocks)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_failed_trial_is_no_block(seconds: float) -> None:
    """NaN, infinite and non-positive times are refused where they enter."""
    with pytest.raises(ValueError, match="finite time"):
        Block(baseline_tokens=1, baseline_s=1.0, candidate_tokens=1, candidate_s=seconds)


@pytest.mark.parametrize(
    ("gain_value", "std_error", "num_blocks", "name"),
    [
        (math.nan, 0.1, 5, "log_gain"),
        (math.inf, 0.1, 5, "log_gain"),
        (0.1, math.nan, 5, "std_error"),
        (0.1, -0.1, 5, "std_error"),
        (0.1, 0.1, 1, "num_blocks"),
    ],
)
def test_estimates_without_meaning_are_refused(
    gain_value: float, std_error: float, num_blocks: int, name: str
) -> None:
    """No NaN can reach a decision inside an estimate."""
    with pytest.raises(ValueError, match=name):
        estimate(gain_value, std_error=std_error, num_blocks=num_blocks)


def test_interval_is_student_t() -> None:
    """Both ends lie a t quantile with blocks - 1 degrees of freedom away from the gain."""
    found = estimate(0.1, std_error=0.02, num_blocks=8)
    half = stats.t.ppf(0.975, 7) * 0.02
    low, high = confidence_interval(found, 0.95)
    assert low == pytest.approx(math.log(1.1) - half)
    assert high == pytest.approx(math.log(1.1) + half)


def test_one_sided_bounds() -> None:
    """A one-sided bound at alpha is the end of the two-sided interval at 1 - 2 alpha."""
    found = estimate(0.1, std_error=0.02, num_blocks=8)
    interval = confidence_interval(found, 0.9)
    assert lower_bound(found, 0.05) == pytest.approx(interval.low)
    assert upper_bound(found, 0.05) == pytest.approx(interval.high)


def test_difference_is_welch() -> None:
    """The interval of a difference agrees with scipy's Welch interval on the same summaries."""
    first = estimate(0.10, std_error=0.01, num_blocks=5)
    second = estimate(0.06, std_error=0.03, num_blocks=12)
    expected = stats.ttest_ind_from_stats(
        first.log_gain, 0.01 * math.sqrt(5), 5, second.log_gain, 0.03 * math.sqrt(12), 12, False
    )
    tail = float(expected.pvalue)
    low, high = difference_interval(first, second, 1 - tail)
    assert low == pytest.approx(0, abs=1e-9)
    assert (low + high) / 2 == pytest.approx(first.log_gain - second.log_gain)


def test_difference_of_a_repeat_holds_zero() -> None:
    """A second measurement half a standard error away does not contradict the first."""
    low, high = difference_interval(estimate(0.10), estimate(0.101), 0.95)
    assert low < 0 < high


def test_weighted_sum_of_exact_estimates_has_no_width() -> None:
    """Standard errors of zero give a zero-width interval rather than a division by zero."""
    exact = estimate(0.1, std_error=0.0)
    total = weighted_sum([(0.25, exact), (0.75, exact)])
    assert total.interval(0.95) == pytest.approx((math.log(1.1), math.log(1.1)))


def test_weighted_sum_survives_tiny_errors() -> None:
    """Squares of tiny variances would underflow; shares of the largest do not."""
    tiny = estimate(0.1, std_error=1e-120, num_blocks=11)
    assert weighted_sum([(0.5, tiny), (0.5, tiny)]).degrees_of_freedom == pytest.approx(20)


def test_weighted_sum_needs_a_term() -> None:
    """An empty sum has no uncertainty to speak of."""
    with pytest.raises(ValueError, match="at least one estimate"):
        weighted_sum([])


# ---------------------------------------------------------------- bounds that hold at any time


def measured(
    seed: int, gain_value: float = 0.1, *, num_blocks: int = 24, request_std_error: float = 0.0
) -> PairedEstimate:
    """An estimate from noisy blocks."""
    random = Random(seed)
    rates = [100 * (1 + gain_value) * math.exp(random.gauss(0, 0.06)) for _ in range(num_blocks)]
    return paired_estimate(blocks_from_rates([100.0] * num_blocks, rates), request_std_error)


def wealth_reaches(values: Sequence[float], centre: float, alpha: float) -> bool:
    """Whether betting against "the centre or less" ever multiplies the money by 1 / alpha."""
    stakes = (0.1, 0.3, 0.6, 0.95)
    held = [0.25] * 4
    for n, value in enumerate(values):
        clip = 0.125 if n < 4 else min(0.25, max(0.01, 2 * stdev(values[:n])))
        pay = min(1.0, max(-1.0, (value - centre) / clip))
        held = [h * (1 + stake * pay) for h, stake in zip(held, stakes, strict=True)]
        if sum(held) >= 1 / alpha:
            return True
    return False


def betting_bound(values: Sequence[float], alpha: float) -> float:
    """The largest centre that is rejected, by bisection."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if wealth_reaches(values, middle, alpha) else (low, middle)
    return low


def test_blocks_are_kept_in_their_order() -> None:
    """Log of candidate rate over baseline rate, one by one."""
    blocks = blocks_from_rates([100, 50, 80], [120, 45, 80])
    found = paired_estimate(blocks)
    assert found.log_ratios == pytest.approx([math.log(1.2), math.log(0.9), 0.0])
    assert found.log_ratios == tuple(map(log_ratio, blocks))


@pytest.mark.parametrize("alpha", [0.05, 0.00625])
@pytest.mark.parametrize("seed", range(4))
def test_known_blocks_are_bounded_by_betting(seed: int, alpha: float) -> None:
    """Written out by hand, for both sides; the figures of the estimate do not matter."""
    found = measured(seed)
    mirrored = [-value for value in found.log_ratios]
    assert lower_bound(found, alpha) == pytest.approx(
        betting_bound(found.log_ratios, alpha), abs=1e-8
    )
    assert upper_bound(found, alpha) == pytest.approx(-betting_bound(mirrored, alpha), abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_of_requests_joins_the_bound_in_quadrature(seed: int) -> None:
    """A normal quantile of its standard error, and the way from the estimate to the bound."""
    plain, joined = measured(seed), measured(seed, request_std_error=0.02)
    for alpha in (0.05, 0.01):
        part = 0.02 * NormalDist().inv_cdf(1 - alpha)
        for bound in (lower_bound, upper_bound):
            alone = abs(bound(plain, alpha) - plain.log_gain)
            together = abs(bound(joined, alpha) - joined.log_gain)
            assert together == pytest.approx(math.hypot(alone, part))


def test_a_bound_never_crosses_the_estimate() -> None:
    """After a change of the gain betting may keep a bound beyond the mean; it is held back."""
    rates = [200.0] * 12 + [50.0] * 60
    found = paired_estimate(blocks_from_rates([100.0] * 72, rates))
    assert lower_bound(found, 0.05) == found.log_gain
    assert upper_bound(found, 0.05) >= found.log_gain


def test_bounds_tighten_with_the_level() -> None:
    """A larger alpha gives a narrower interval, with and without blocks."""
    for found in (measured(1), replace(measured(1), log_ratios=())):
        lows = [lower_bound(found, alpha) for alpha in (0.001, 0.01, 0.05, 0.2)]
        assert all(a < b for a, b in pairwise(lows))


def test_few_blocks_bound_nothing_at_any_time() -> None:
    """Seven blocks cannot reach 1 / 0.025: no bound, and no decision can rest on them."""
    found = measured(2, 0.5, num_blocks=7)
    assert (lower_bound(found, 0.025), upper_bound(found, 0.025)) == (-math.inf, math.inf)
    assert lower_bound(measured(2, 0.5, num_blocks=8), 0.025) > -math.inf


@pytest.mark.parametrize("num_blocks", range(2, 12))
def test_published_intervals_are_finite(num_blocks: int) -> None:
    """A document cannot hold an infinite figure: too few blocks get Student's interval."""
    found = measured(3, num_blocks=num_blocks, request_std_error=0.01)
    low, high = confidence_interval(found, 0.95)
    assert -math.inf < low <= found.log_gain <= high < math.inf
    if num_blocks < 8:
        half = stats.t.ppf(0.975, num_blocks - 1) * found.std_error
        assert (low, high) == pytest.approx((found.log_gain - half, found.log_gain + half))
    else:
        assert (low, high) == (lower_bound(found, 0.025), upper_bound(found, 0.025))


# ---------------------------------------------------------------- the total of a table


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_total_of_known_blocks(alpha: float) -> None:
    """Block noise is independent from size to size, the choice of requests is one and the same.

    Recomputed from the blocks: weighted ways to the bounds in quadrature, request errors added
    up in full, the two parts in quadrature.
    """
    terms = [
        (0.5, measured(5, 0.2, request_std_error=0.02)),
        (0.3, measured(6, 0.05, request_std_error=0.01)),
        (0.2, measured(7, -0.02)),
    ]
    total = Total(tuple(terms))
    centre = sum(weight * one.log_gain for weight, one in terms)
    requests = (0.5 * 0.02 + 0.3 * 0.01) * stats.norm.ppf(1 - alpha)
    down = [w * (one.log_gain - betting_bound(one.log_ratios, alpha)) for w, one in terms]
    mirrored = [[-value for value in one.log_ratios] for _, one in terms]
    up = [
        w * (-betting_bound(values, alpha) - one.log_gain)
        for (w, one), values in zip(terms, mirrored, strict=True)
    ]
    assert total.log_gain == pytest.approx(centre)
    assert total.lower(alpha) == pytest.approx(
        centre - math.sqrt(sum(x * x for x in down) + requests**2), abs=1e-7
    )
    assert total.upper(alpha) == pytest.approx(
        centre + math.sqrt(sum(x * x for x in up) + requests**2), abs=1e-7
    )


def test_total_of_a_single_estimate() -> None:
    """Its own bounds."""
    found = measured(8, request_std_error=0.01)
    total = Total(((1.0, found),))
    assert total.lower(0.05) == pytest.approx(lower_bound(found, 0.05))
    assert total.upper(0.05) == pytest.approx(upper_bound(found, 0.05))


def test_total_without_blocks_is_welch() -> None:
    """Where the blocks of a term are not known, all are bounded by Student's t."""
    terms = ((0.5, estimate(0.1)), (0.5, measured(9)))
    total, wanted = Total(terms), weighted_sum(terms)
    assert total.log_gain == pytest.approx(wanted.log_gain)
    assert total.lower(0.05) == pytest.approx(wanted.lower(0.05))
    assert total.upper(0.05) == pytest.approx(wanted.upper(0.05))


def test_total_with_too_few_blocks_is_open() -> None:
    """One batch size without a bound leaves the sum without one."""
    total = Total(((0.9, measured(1)), (0.1, measured(2, num_blocks=4))))
    assert (total.lower(0.01), total.upper(0.01)) == (-math.inf, math.inf)

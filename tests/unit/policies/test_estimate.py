"""Paired estimates and their intervals."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from policies.estimate import (
    confidence_interval,
    difference_interval,
    gain,
    lower_bound,
    paired_estimate,
    upper_bound,
    weighted_sum,
)
from policies.types import Block
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

"""Gains from paired blocks, with their uncertainty, on the logarithmic scale.

The unit is the ABBA block: the rows of one window share one clock, so tokens inside a block
are not independent and only blocks are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

from policies import betting
from policies.student_t import upper_quantile
from policies.types import Block, PairedEstimate

_ENOUGH_BLOCKS = 8  # to look whether they agree with replay
_CONTRADICTION_SDS = 4.0


class LogInterval(NamedTuple):
    """Both ends of an interval of a log gain."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A weighted sum of independent log gains.

    Attributes:
        log_gain: The weighted sum.
        std_error: Its standard error.
        degrees_of_freedom: For Student's t (Welch-Satterthwaite where estimates are summed).
    """

    log_gain: float
    std_error: float
    degrees_of_freedom: float

    def lower(self, alpha: float) -> float:
        """One-sided bound that lies above the truth with probability `alpha`."""
        return self.log_gain - self.std_error * upper_quantile(alpha, self.degrees_of_freedom)

    def upper(self, alpha: float) -> float:
        """One-sided bound that lies below the truth with probability `alpha`."""
        return self.log_gain + self.std_error * upper_quantile(alpha, self.degrees_of_freedom)

    def interval(self, confidence: float) -> LogInterval:
        """Two-sided interval that covers the truth with probability `confidence`."""
        tail = (1 - confidence) / 2
        return LogInterval(self.lower(tail), self.upper(tail))


def comparable(blocks: Sequence[Block], request_std_error: float = 0.0) -> Sequence[Block]:
    """The blocks with the tokens that rates are computed from.

    What a few hundred rounds accept is mostly luck, and most of the noise of a block at small
    batch sizes; what they accept on average is known from replay, with its own standard error.
    So a block has to tell only how long rounds take. That rests on the engine accepting what
    replay expects: where all blocks together contradict it, the tokens that were emitted count.
    Source: control variates with a known mean (Owen, Monte Carlo theory, methods and examples,
    section 8.9).

    Args:
        blocks: Undisturbed blocks of one arm.
        request_std_error: Standard error of the log of the expected tokens.
    """
    expected = _expected(blocks)
    if expected is None or contradicts_replay(blocks, request_std_error):
        return [replace(block, expected_tokens=None) for block in blocks]
    return [
        replace(block, candidate_tokens=tokens, expected_tokens=None)
        for block, tokens in zip(blocks, expected, strict=True)
    ]


def _expected(blocks: Sequence[Block]) -> Sequence[float] | None:
    """Of all blocks, which are compared by one measure, or of none."""
    known = [block.expected_tokens for block in blocks if block.expected_tokens is not None]
    return known if len(known) == len(blocks) else None


def contradicts_replay(blocks: Sequence[Block], request_std_error: float = 0.0) -> bool:
    """Whether emitted tokens differ from the expected ones by more than chance explains.

    Args:
        blocks: Undisturbed blocks of one arm.
        request_std_error: Standard error of the log of the expected tokens.
    """
    expected = _expected(blocks)
    if expected is None or len(blocks) < _ENOUGH_BLOCKS:
        return False
    emitted = [float(block.candidate_tokens) for block in blocks]
    difference, std_error = _log_quotient(emitted, expected)
    return abs(difference) > _CONTRADICTION_SDS * math.hypot(std_error, request_std_error)


def _log_quotient(over: Sequence[float], under: Sequence[float]) -> tuple[float, float]:
    """Log of the quotient of sums, and its standard error by the delete-one jackknife."""
    replicates = [
        math.log(a / b)
        for a, b in zip(_sums_without_each(over), _sums_without_each(under), strict=True)
    ]
    return math.log(math.fsum(over) / math.fsum(under)), _jackknife(replicates)


def _jackknife(replicates: Sequence[float]) -> float:
    """Standard error from the estimates without one block each.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), equation 11.5.
    """
    count = len(replicates)
    centre = math.fsum(replicates) / count
    spread = math.fsum((replicate - centre) ** 2 for replicate in replicates)
    return math.sqrt((count - 1) / count * spread)


def paired_estimate(blocks: Sequence[Block], request_std_error: float = 0.0) -> PairedEstimate:
    """Gain of the candidate over the baseline: the log of the ratio of summed rates.

    The noise between blocks comes from the delete-one-block jackknife.

    Args:
        blocks: Undisturbed blocks of one arm.
        request_std_error: Standard error of the log gain from the choice of requests, joined in
            quadrature.

    Raises:
        ValueError: Fewer than 2 blocks, which say nothing about their spread.
    """
    count = len(blocks)
    if count < 2:
        raise ValueError(f"{count} blocks: at least 2 are needed for a standard error")
    blocks = comparable(blocks, request_std_error)
    baseline_tokens = [float(block.baseline_tokens) for block in blocks]
    baseline_s = [block.baseline_s for block in blocks]
    candidate_tokens = [float(block.candidate_tokens) for block in blocks]
    candidate_s = [block.candidate_s for block in blocks]
    baseline_rate = math.fsum(baseline_tokens) / math.fsum(baseline_s)
    candidate_rate = math.fsum(candidate_tokens) / math.fsum(candidate_s)
    replicates = [
        math.log(c_tokens / c_s) - math.log(b_tokens / b_s)
        for b_tokens, b_s, c_tokens, c_s in zip(
            _sums_without_each(baseline_tokens),
            _sums_without_each(baseline_s),
            _sums_without_each(candidate_tokens),
            _sums_without_each(candidate_s),
            strict=True,
        )
    ]
    return PairedEstimate(
        log_gain=math.log(candidate_rate) - math.log(baseline_rate),
        std_error=math.hypot(_jackknife(replicates), request_std_error),
        num_blocks=count,
        baseline_tokens_per_s=baseline_rate,
        candidate_tokens_per_s=candidate_rate,
        request_std_error=request_std_error,
        log_ratios=tuple(log_ratio(block) for block in blocks),
    )


def log_ratio(block: Block) -> float:
    """Log of candidate rate / baseline rate of one block, of the tokens that were emitted."""
    candidate = block.candidate_tokens / block.candidate_s
    return math.log(candidate) - math.log(block.baseline_tokens / block.baseline_s)


def _sums_without_each(values: Sequence[float]) -> list[float]:
    """Sum of all values but one, for each one.

    Added up from both ends rather than taken off the total: a difference could be 0 or less
    when one block dwarfs the others.
    """
    before = [0.0, *accumulate(values)]
    after = [0.0, *accumulate(reversed(values))]
    return [before[i] + after[-2 - i] for i in range(len(values))]


def gain(log_gain: float) -> float:
    """The gain as a fraction (0.02 = 2 % faster)."""
    return math.expm1(log_gain)


def confidence_interval(estimate: PairedEstimate, confidence: float) -> LogInterval:
    """Two-sided interval of the log gain, always finite; see `lower_bound`.

    With too few blocks for a bound that holds at any time no result can have made one stop, so
    their number was as good as fixed beforehand, and the interval is Student's.

    Raises:
        ValueError: `confidence` is not between 0 and 1.
    """
    tail = (1 - confidence) / 2
    found = LogInterval(lower_bound(estimate, tail), upper_bound(estimate, tail))
    return found if all(map(math.isfinite, found)) else _single(estimate).interval(confidence)


def lower_bound(estimate: PairedEstimate, alpha: float) -> float:
    """One-sided lower bound of the log gain, wrong with probability `alpha`.

    Where the blocks are known it holds however long one went on measuring
    (`policies.betting`); the choice of requests is joined in quadrature. Else by Student's t with
    one degree less than blocks, for a number of blocks that was fixed beforehand.

    Raises:
        ValueError: `alpha` is not between 0 and 1.
    """
    return estimate.log_gain - _reach(estimate, alpha, upper=False)


def upper_bound(estimate: PairedEstimate, alpha: float) -> float:
    """One-sided upper bound of the log gain; see `lower_bound`.

    Raises:
        ValueError: `alpha` is not between 0 and 1.
    """
    return estimate.log_gain + _reach(estimate, alpha, upper=True)


def _reach(estimate: PairedEstimate, alpha: float, *, upper: bool) -> float:
    """How far a bound lies from the estimate."""
    if not estimate.log_ratios:
        one = _single(estimate)
        return one.upper(alpha) - one.log_gain if upper else one.log_gain - one.lower(alpha)
    requests = estimate.request_std_error * NormalDist().inv_cdf(1 - alpha)
    return math.hypot(_block_reach(estimate, alpha, upper=upper), requests)


def _block_reach(estimate: PairedEstimate, alpha: float, *, upper: bool) -> float:
    """The part of `_reach` that blocks can see."""
    if upper:
        return max(0.0, betting.upper_bound(estimate.log_ratios, alpha) - estimate.log_gain)
    return max(0.0, estimate.log_gain - betting.lower_bound(estimate.log_ratios, alpha))


def difference_interval(a: PairedEstimate, b: PairedEstimate, confidence: float) -> LogInterval:
    """Interval of `a.log_gain - b.log_gain`, for two independent measurements of one gain.

    It contains zero unless the second measurement contradicts the first.

    Raises:
        ValueError: `confidence` is not between 0 and 1.
    """
    return weighted_sum([(1.0, a), (-1.0, b)]).interval(confidence)


def weighted_sum(terms: Sequence[tuple[float, PairedEstimate]]) -> Contrast:
    """Weighted sum of independent log gains, its degrees of freedom by Welch-Satterthwaite.

    Args:
        terms: Pairs of a weight and an estimate.

    Raises:
        ValueError: There are no terms.

    Source: Welch, Biometrika 34 (1947).
    """
    if not terms:
        raise ValueError("a weighted sum needs at least one estimate")
    variances = [(weight * estimate.std_error) ** 2 for weight, estimate in terms]
    freedom = [estimate.num_blocks - 1 for _, estimate in terms]
    largest = max(variances)
    if largest == 0:
        degrees_of_freedom = float(sum(freedom))
    else:
        # Only shares matter; without this squares of small variances would underflow.
        shares = [variance / largest for variance in variances]
        degrees_of_freedom = math.fsum(shares) ** 2 / math.fsum(
            share**2 / degrees for share, degrees in zip(shares, freedom, strict=True)
        )
    return Contrast(
        log_gain=math.fsum(weight * estimate.log_gain for weight, estimate in terms),
        std_error=math.sqrt(math.fsum(variances)),
        degrees_of_freedom=degrees_of_freedom,
    )


@dataclass(frozen=True, slots=True)
class Total:
    """A weighted sum of log gains of one drafter at several batch sizes.

    The noise of blocks is independent; what depends on the choice of requests is the same draw
    at all batch sizes, so it adds up in full.

    Attributes:
        terms: Pairs of a weight and an estimate; at least one.
    """

    terms: tuple[tuple[float, PairedEstimate], ...]

    @property
    def log_gain(self) -> float:
        """The weighted sum."""
        return math.fsum(weight * estimate.log_gain for weight, estimate in self.terms)

    def lower(self, alpha: float) -> float:
        """One-sided lower bound, wrong with probability `alpha`."""
        return self.log_gain - self._reach(alpha, upper=False)

    def upper(self, alpha: float) -> float:
        """One-sided upper bound, wrong with probability `alpha`."""
        return self.log_gain + self._reach(alpha, upper=True)

    def _reach(self, alpha: float, *, upper: bool) -> float:
        if not all(estimate.log_ratios for _, estimate in self.terms):
            total = weighted_sum(self.terms)
            bound = total.upper(alpha) if upper else total.lower(alpha)
            return abs(bound - total.log_gain)
        blocks = math.hypot(*(w * _block_reach(e, alpha, upper=upper) for w, e in self.terms))
        requests = math.fsum(weight * e.request_std_error for weight, e in self.terms)
        return math.hypot(blocks, requests * NormalDist().inv_cdf(1 - alpha))


def _single(estimate: PairedEstimate) -> Contrast:
    return Contrast(
        log_gain=estimate.log_gain,
        std_error=estimate.std_error,
        degrees_of_freedom=float(estimate.num_blocks - 1),
    )

"""Student's t distribution: quantiles for intervals from few blocks, without scipy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_MAX_TERMS = 10_000
_MAX_NEWTON_STEPS = 200


def regularised_incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """I_x(a, b), the distribution function of a beta variable.

    Args:
        x: In [0, 1].
        complement: 1 - x. Taken from the caller, who often knows it without cancellation.
        a: First shape, positive.
        b: Second shape, positive.

    Source: NIST Digital Library of Mathematical Functions, 8.17.4 and 8.17.22.
    """
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - regularised_incomplete_beta(complement, x, b, a)
    if x == 0:
        return 0.0
    log_front = (
        a * math.log(x)
        + b * math.log(complement)
        + math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
    )
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1 + d1/(1 + d2/(1 + ...)) of 8.17.22, by Lentz's method."""
    value, ratio, inverse = 1.0, 1.0, 0.0
    for n in range(1, _MAX_TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        inverse = 1 / (1 + term * inverse)
        ratio = 1 + term / ratio
        value *= ratio * inverse
        if abs(ratio * inverse - 1) < 1e-15:
            break
    return value


def upper_tail(t: float, degrees_of_freedom: float) -> float:
    """P(T > t) for t >= 0."""
    total = degrees_of_freedom + t * t
    beta = regularised_incomplete_beta(
        degrees_of_freedom / total, t * t / total, degrees_of_freedom / 2, 0.5
    )
    return beta / 2


@lru_cache(maxsize=4096)
def upper_quantile(tail: float, degrees_of_freedom: float) -> float:
    """The t that Student's variable exceeds with probability `tail`.

    Newton's method from the normal quantile: the upper tail is convex and lies above the
    normal one, so every step goes up and none overshoots.

    Args:
        tail: Between 0 and 1, both excluded. A tail, not a level, so that small ones keep
            their digits.
        degrees_of_freedom: At least 1; need not be whole (Welch).

    Raises:
        ValueError: An argument lies outside its range.
    """
    if not 0 < tail < 1:
        raise ValueError(f"tail = {tail}: must lie between 0 and 1")
    if not 1 <= degrees_of_freedom < math.inf:
        raise ValueError(f"degrees_of_freedom = {degrees_of_freedom}: must be finite, 1 or more")
    if tail > 0.5:
        return -upper_quantile(1 - tail, degrees_of_freedom)
    t = -NormalDist().inv_cdf(tail)
    for _ in range(_MAX_NEWTON_STEPS):
        step = (upper_tail(t, degrees_of_freedom) - tail) / _density(t, degrees_of_freedom)
        t += step
        if step <= 1e-15 + 1e-13 * t:
            break
    return t


def _density(t: float, degrees_of_freedom: float) -> float:
    half = (degrees_of_freedom + 1) / 2
    log_scale = math.lgamma(half) - math.lgamma(degrees_of_freedom / 2)
    log_kernel = -half * math.log1p(t * t / degrees_of_freedom)
    return math.exp(log_scale + log_kernel) / math.sqrt(degrees_of_freedom * math.pi)

"""Anytime-valid evidence from paired blocks, by betting, and the bounds it implies.

A block gives one number, the log of candidate rate over baseline rate. To test "the centre is
`bound` or less" a gambler starts with one unit and stakes a fixed fraction of it on every
block; the stake pays `score(value - bound, clip)`, which lies in [-1, 1]:

    wealth_n = mean over FRACTIONS f of prod_{i <= n} (1 + f * score_i)

If the hypothesis is true, nobody can expect to win: wealth reaches 1 / alpha at some time with
probability alpha at most (Ville's inequality), however often one looks and whatever makes one
stop. The fractions are a fixed grid, so nothing is tuned on the data. The clip is twice the
standard deviation of the *earlier* blocks, so that quiet machines decide fast; since it is
known before the block, the bet stays fair. Wealth falls as `bound` rises, so the bounds not yet
rejected form a half-line, whose end is found by bisection.

What the error bound needs, in terms of the law of each block given the earlier ones:

- The hypothesis is E[clip(value - bound, -c, c)] <= 0 for every clip c that may be used
  (MIN_CLIP to MAX_CLIP). For a law symmetric about a centre, however heavy its tails, that says
  `centre <= bound`. The noise of randomised blocks is symmetric when either arm is disturbed
  as easily as the other, and then the centre is the median, and the mean where there is one.
- A skewed law has no single centre. What is bounded lies between its median and its mean, since
  far values count less; a long tail of slow candidates hides part of its cost. Called a gain
  although the mean is at the margin, within 200 blocks, with alpha = 0.05 and a standard
  deviation of 0.067: 2.6 % for normal noise, 1 % for a gamma law with skewness 1, 7 % with
  skewness -1, 15 % for an exponential law (skewness -2).
- The centre must not depend on earlier blocks. In the same setting autocorrelated blocks, AR(1)
  with coefficient 0.1, 0.2 and 0.3, give 4.6 %, 8 % and 12 %; a gain that wanders, by 0.01 and
  0.02 (standard deviation of its random walk over the 200 blocks), 6 % and 17 %. Randomised
  ABBA order inside blocks removes drift of the clock, not of the gain.

Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
J. R. Stat. Soc. B 86 (2024), section 4 and its GridKelly strategy; Huber, Ann. Math. Stat. 35
(1964) for the centre of a clipped law.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

FRACTIONS = (0.1, 0.3, 0.6, 0.95)
"""Shares of the wealth staked on every block, one gambler each; all below 1, so that none goes
broke. The money is split equally. Eight fractions decide no faster."""

CLIP_IN_SDS = 2.0
"""Clip in standard deviations of the earlier blocks. 1.5 decides 6 % sooner at a gain of 8 % and
a standard deviation of 0.067, but doubles the harm of skewness; 3 decides 18 % later."""

WARM_UP = 4
"""Blocks that are clipped at FIRST_CLIP because there are too few before them."""

FIRST_CLIP = 0.125
MIN_CLIP = 0.01
MAX_CLIP = 0.25
"""Clip of the warm-up, and the limits of the clip after it (log ratios)."""

BOUND_STEP = 2.0**-30
"""Bounds are whole multiples of this (1e-9, a log ratio), rounded to the safe side."""

LARGEST = 1500.0
"""No two floating-point rates have a larger log ratio."""

_SMALL, _LARGE = 1e-100, 1e100  # outside of these the wealth is written as a logarithm


def score(excess: float, clip: float) -> float:
    """What a stake of 1 pays: `excess / clip`, cut to the range from -1 to 1."""
    return max(-1.0, min(1.0, excess / clip))


def evidence_above(values: Sequence[float], bound: float) -> float:
    """Logarithm of the e-value of all blocks against "the centre is `bound` or less".

    Args:
        values: Log ratios of candidate to baseline rate, one per block, in order of time.
        bound: Log ratio.

    Returns:
        Log of the wealth after the last block; 0 without blocks. Those of independent sets of
        blocks may be added. This value may fall again; `is_above` remembers the highest.

    Raises:
        ValueError: A value or `bound` is not within +-LARGEST.
    """
    _check(values, bound)
    return deque(_log_wealth(values, _clips(values), bound), maxlen=1).pop() if values else 0.0


def evidence_below(values: Sequence[float], bound: float) -> float:
    """Logarithm of the e-value against "the centre is `bound` or more"; see `evidence_above`.

    Raises:
        ValueError: A value or `bound` is not within +-LARGEST.
    """
    return evidence_above([-value for value in values], -bound)


def is_above(values: Sequence[float], margin: float, alpha: float) -> bool:
    """Whether the centre was, at some block so far, shown to exceed `margin`.

    Once true it stays true as blocks are added.

    Args:
        values: Log ratios, one per block, in order of time.
        margin: Log ratio; `math.log1p(0.01)` for a margin of 1 %.
        alpha: Bound on the probability of ever saying yes to a centre at or below `margin`.

    Raises:
        ValueError: A value or `margin` is not within +-LARGEST, or `alpha` is not between 0 and 1.
    """
    _check(values, margin, alpha)
    return _ever_reached(values, _clips(values), margin, alpha)


def is_below(values: Sequence[float], margin: float, alpha: float) -> bool:
    """Whether the centre was, at some block so far, shown to lie below `margin`.

    Raises:
        ValueError: A value or `margin` is not within +-LARGEST, or `alpha` is not between 0 and 1.
    """
    return is_above([-value for value in values], -margin, alpha)


def lower_bound(values: Sequence[float], alpha: float) -> float:
    """The best lower bound of the centre that any number of the blocks so far gave.

    With probability `1 - alpha` all these bounds, at all times, lie below the centre. They
    never fall as blocks are added. For an interval take both bounds at `alpha / 2`; it can be
    empty, which says that the centre moved or that the error happened.

    Args:
        values: Log ratios, one per block, in order of time.
        alpha: Probability of a lower bound above the centre, at any time.

    Returns:
        Log ratio, less than `BOUND_STEP` below the exact bound; -inf while there are too
        few blocks (with alpha = 0.05 at least 7, with 0.05 / 3 at least 8).

    Raises:
        ValueError: A value is not within +-LARGEST, or `alpha` is not between 0 and 1.
    """
    _check(values, 0.0, alpha)
    if not values:
        return -math.inf
    clips = _clips(values)
    rejected = math.floor((min(values) - MAX_CLIP) / BOUND_STEP)  # every stake pays in full
    if not _ever_reached(values, clips, rejected * BOUND_STEP, alpha):
        return -math.inf
    kept = math.ceil(max(values) / BOUND_STEP)  # no stake pays
    while kept - rejected > 1:
        middle = (rejected + kept) // 2
        if _ever_reached(values, clips, middle * BOUND_STEP, alpha):
            rejected = middle
        else:
            kept = middle
    return rejected * BOUND_STEP


def upper_bound(values: Sequence[float], alpha: float) -> float:
    """The best upper bound of the centre so far; see `lower_bound`.

    Raises:
        ValueError: A value is not within +-LARGEST, or `alpha` is not between 0 and 1.
    """
    return -lower_bound([-value for value in values], alpha)


def _clips(values: Sequence[float]) -> list[float]:
    """Clip of every block, from the blocks before it (Welford's running variance)."""
    clips: list[float] = []
    mean, squares = 0.0, 0.0
    for num_before, value in enumerate(values):
        if num_before < WARM_UP:
            clips.append(FIRST_CLIP)
        else:
            noise = math.sqrt(squares / (num_before - 1))
            clips.append(max(MIN_CLIP, min(MAX_CLIP, CLIP_IN_SDS * noise)))
        change = value - mean
        mean += change / (num_before + 1)
        squares += change * (value - mean)
    return clips


def _log_wealth(values: Sequence[float], clips: Sequence[float], bound: float) -> Iterator[float]:
    """Log of the wealth after every block."""
    money, offset = [1 / len(FRACTIONS)] * len(FRACTIONS), 0.0
    for value, clip in zip(values, clips, strict=True):
        pay = score(value - bound, clip)
        money = [
            held * (1 + fraction * pay) for held, fraction in zip(money, FRACTIONS, strict=True)
        ]
        wealth = sum(money)
        if not _SMALL < wealth < _LARGE:
            money = [held / wealth for held in money]
            offset, wealth = offset + math.log(wealth), 1.0
        yield offset + math.log(wealth)


def _ever_reached(
    values: Sequence[float], clips: Sequence[float], bound: float, alpha: float
) -> bool:
    needed = -math.log(alpha)
    return any(log >= needed for log in _log_wealth(values, clips, bound))


def _check(values: Sequence[float], bound: float, alpha: float = 0.5) -> None:
    for index, value in enumerate(values):
        if not abs(value) <= LARGEST:
            raise ValueError(f"block {index} = {value}: must be a log ratio within +-{LARGEST:g}")
    if not abs(bound) <= LARGEST:
        raise ValueError(f"bound = {bound}: must be a log ratio within +-{LARGEST:g}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha}: must lie between 0 and 1")

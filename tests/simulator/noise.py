"""What stands between a true gain and a measured block.

Calibrated on identical arms in ABBA blocks of 2 s on a two-core machine: the log ratio of a block
has a standard deviation of 0.067 at batch 1 and 16 and 0.095 at batch 64.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import numpy as np

_CALIBRATED = ((1, 0.067), (16, 0.067), (64, 0.095))
_CALIBRATED_BLOCK_S = 2.0
IDLE_SHARE = 0.1
"""Of the noise, where an idle drafter is compared with none in short slices: such blocks had a
standard deviation of 0.0076 at batch 16 on a quiet machine."""


def block_sd(batch_size: int, block_s: float) -> float:
    """Standard deviation of the log ratio of a block whose four windows take `block_s`.

    Linear in the logarithm of the batch size between the calibrated sizes; longer blocks are
    quieter by the square root of their length.
    """
    sizes = [size for size, _ in _CALIBRATED]
    right = min(max(bisect_left(sizes, batch_size), 1), len(sizes) - 1)
    (low, low_sd), (high, high_sd) = _CALIBRATED[right - 1], _CALIBRATED[right]
    share = min(max(math.log(batch_size / low) / math.log(high / low), 0.0), 1.0)
    return (low_sd + share * (high_sd - low_sd)) * math.sqrt(_CALIBRATED_BLOCK_S / block_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """Episodes in which windows are slowed down, each on its own: ABBA does not cancel them.

    Attributes:
        start: Chance per block that an episode begins.
        mean_blocks: Its mean length (geometric).
        window_share: Chance that a window inside it is slow.
        slowdown: By which share of its rate.
        noticed: Chance that a block with a slow window is flagged as disturbed.
    """

    start: float = 0.02
    mean_blocks: float = 4.0
    window_share: float = 0.5
    slowdown: float = 0.3
    noticed: float = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of one machine.

    Attributes:
        tails: Shape of the block noise, at the same standard deviation.
        autocorrelation: Of the block noise from one block to the next, whatever they measure.
        clock_sd: Standard deviation of the log clock speed, which both arms of a block share.
        clock_autocorrelation: From one block to the next; near 1 it drifts slowly.
        throttling: None for a machine that never does.
        lucky_block: Number of the one block (from 0) whose candidate looks faster by
            `lucky_gain`; None for no such block.
        lucky_gain: A fraction.
    """

    tails: Literal["normal", "t3"] = "normal"
    autocorrelation: float = 0.0
    clock_sd: float = 0.1
    clock_autocorrelation: float = 0.95
    throttling: Throttling | None = None
    lucky_block: int | None = None
    lucky_gain: float = 0.3


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What happened to one block.

    Attributes:
        log_baseline: Added to the log rate of the baseline.
        log_candidate: Added to that of the candidate.
        flagged: The block is known to be disturbed.
    """

    log_baseline: float
    log_candidate: float
    flagged: bool


class NoiseSource:
    """The noise of one search, block after block."""

    def __init__(self, noise: Noise, generator: np.random.Generator) -> None:
        """Start in the stationary state, outside an episode."""
        self._noise = noise
        self._generator = generator
        self._num_blocks = 0
        self._carried = self._standard()
        self._clock = noise.clock_sd * generator.standard_normal()
        self._throttled = False

    def next_block(self, batch_size: int, block_s: float, *, is_idle: bool = False) -> Disturbance:
        """The next block in time; `is_idle` compares two arms that do not draft."""
        noise = self._noise
        keep = noise.autocorrelation
        self._carried = keep * self._carried + math.sqrt(1 - keep**2) * self._standard()
        keep = noise.clock_autocorrelation
        fresh = noise.clock_sd * math.sqrt(1 - keep**2) * self._generator.standard_normal()
        self._clock = keep * self._clock + fresh
        half = block_sd(batch_size, block_s) * self._carried / 2
        if is_idle:
            half *= IDLE_SHARE
        baseline, candidate, flagged = self._throttle()
        if self._num_blocks == noise.lucky_block:
            candidate += math.log1p(noise.lucky_gain)
        self._num_blocks += 1
        return Disturbance(self._clock - half + baseline, self._clock + half + candidate, flagged)

    def _standard(self) -> float:
        """Variance 1; Student's t with 3 degrees of freedom has a variance of 3."""
        if self._noise.tails == "normal":
            return float(self._generator.standard_normal())
        return float(self._generator.standard_t(3)) / math.sqrt(3)

    def _throttle(self) -> tuple[float, float, bool]:
        """What an episode adds to the log rate of each arm, of two windows each."""
        model = self._noise.throttling
        if model is None:
            return 0.0, 0.0, False
        change = 1 / model.mean_blocks if self._throttled else model.start
        if self._generator.random() < change:
            self._throttled = not self._throttled
        if not self._throttled:
            return 0.0, 0.0, False
        slow = self._generator.binomial(2, model.window_share, size=2)
        if not slow.any():
            return 0.0, 0.0, False
        baseline, candidate = np.log1p(-model.slowdown * slow / 2).tolist()
        return baseline, candidate, bool(self._generator.random() < model.noticed)

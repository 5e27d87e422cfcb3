"""What replay and a cost table would predict for a simulated world, with their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from policies.types import SpeculativeConfig
from tests.simulator.arms import Arm, arm_config
from tests.simulator.world import World

PriorMode = Literal["exact", "noisy", "adversarial", "useless"]

WORSE = -math.log(0.95)
"""An arm this far (in log rate) below another is more than 5 % slower, but for rounding."""

_ERROR_SD = 0.05
_ERROR_SHARES = (0.4, 0.3, 0.3)  # of the variance: drafter, drafter at a batch size, arm
_LEAD = 0.02  # of a decoy over the best prediction of any other arm


@dataclass(frozen=True, slots=True)
class SimulatedPredictor:
    """Predicts decode rates from a table, with the methods of `autotune.tuning.prior.Prior`."""

    log_gains: Mapping[Arm, float]
    off_rates: Mapping[int, float]
    request_std_errors: Mapping[SpeculativeConfig, float]

    def off_tokens_per_s(self, batch_size: int) -> float:
        """Output tokens per second without speculation."""
        return self.off_rates[batch_size]

    def tokens_per_s(self, config: SpeculativeConfig, batch_size: int) -> float:
        """Output tokens per second of an arm; an idle drafter is predicted to cost nothing."""
        gain = self.log_gains[batch_size, config] if config.speculates else 0.0
        return self.off_rates[batch_size] * math.exp(gain)

    def log_std_error(self, config: SpeculativeConfig) -> float:
        """Standard error of the log gain from the choice of requests."""
        return self.request_std_errors.get(config, 0.0)

    def argmax(self, batch_size: int) -> SpeculativeConfig:
        """The arm that drafts and is predicted to be the fastest."""
        mine = {c: gain for (size, c), gain in self.log_gains.items() if size == batch_size}
        return max(mine, key=lambda config: mine[config])


def predict(
    world: World, mode: PriorMode, generator: np.random.Generator, error_sd: float = _ERROR_SD
) -> SimulatedPredictor:
    """The prior of a world.

    Every mode sees the chosen requests, as replay does, so it shares their shift with the bench.

    Args:
        world: What is true; the prior is made before any drift.
        mode: `exact` has no further error. `noisy` has log-normal errors of `error_sd`, most of
            them common to a drafter. `adversarial` has them too, and at every batch size favours
            a decoy whose true rate is more than 5 % below the best. `useless` gives every arm
            the gain of another one.
        generator: Randomness.
        error_sd: Standard deviation of the log errors.

    Raises:
        ValueError: `adversarial`, and some batch size has no arm that is bad enough.
    """
    true = {
        (size, config): world.measurable(config, size)
        for size in world.batch_sizes
        for config in world.arms
    }
    if mode == "useless":
        predicted = _shuffled(world, true, generator)
    elif mode == "exact":
        predicted = true
    else:
        predicted = _with_errors(world, true, generator, error_sd)
    if mode == "adversarial":
        _favour_decoys(world, predicted, generator)
    return SimulatedPredictor(predicted, world.off_tokens_per_s, world.request_std_errors)


def _with_errors(
    world: World, true: dict[Arm, float], generator: np.random.Generator, error_sd: float
) -> dict[Arm, float]:
    sizes, names = world.batch_sizes, list(world.temperatures)
    of_drafter, of_size, of_arm = (error_sd * math.sqrt(share) for share in _ERROR_SHARES)
    by_drafter = generator.normal(0, of_drafter, len(names))[:, None]
    by_size = generator.normal(0, of_size, (len(names), len(sizes)))
    common = dict(zip(names, (by_drafter + by_size).tolist(), strict=True))
    column = {size: i for i, size in enumerate(sizes)}
    own = generator.normal(0, of_arm, len(true)).tolist()
    return {
        (size, config): gain + common[config.drafter][column[size]] + error
        for ((size, config), gain), error in zip(true.items(), own, strict=True)
    }


def _shuffled(
    world: World, true: dict[Arm, float], generator: np.random.Generator
) -> dict[Arm, float]:
    predicted = {}
    for size in world.batch_sizes:
        gains = np.array([true[size, config] for config in world.arms])
        for config, gain in zip(world.arms, generator.permutation(gains).tolist(), strict=True):
            predicted[size, config] = gain
    return predicted


def _favour_decoys(
    world: World, predicted: dict[Arm, float], generator: np.random.Generator
) -> None:
    """Lift a bad arm above all others at every batch size, and its neighbours in K with it.

    A drafter that is thought to accept too much misleads everywhere, so the decoys are of one
    drafter where it has arms that are bad enough.
    """
    favourite = world.kinds[generator.integers(len(world.kinds))]
    for size in world.batch_sizes:
        _, best = world.best_arm(size)
        bad = [c for c in world.arms if world.log_gain(c, size) < best - WORSE]
        if not bad:
            raise ValueError(f"batch size {size}: no arm is more than 5 % below the best")
        own = [c for c in bad if (c.drafter, c.draft_temperature) == favourite]
        decoy = max(own or bad, key=lambda config: predicted[size, config])
        highest = max(0.0, *(predicted[size, config] for config in world.arms))
        lift = highest + _LEAD - predicted[size, decoy]
        for k in range(1, world.max_num_speculative_tokens + 1):
            arm = size, arm_config(decoy.drafter, k, decoy.draft_temperature)
            away = abs(k - decoy.num_speculative_tokens)
            predicted[arm] = min(predicted[arm] + lift * 0.5**away, highest)
        predicted[size, decoy] = highest + _LEAD

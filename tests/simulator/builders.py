"""Worlds from systems of made-up hardware, or from gains that are given outright."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from policies.types import SpeculativeConfig
from tests.simulator.arms import Arm, arm_config
from tests.simulator.physics import System
from tests.simulator.systems import TEMPERATURES
from tests.simulator.world import World

BATCH_SIZES = (1, 4, 16, 64)
MAX_DRAFTS = 8
NAMES = ("draft", "eagle", "parallel")
"""Drafters of a world whose gains are given."""

_REQUEST_SD = 0.005  # relative, of acceptance probabilities: about 1 % of tau at K = 5
_SHARED = 0.5  # of the variance of that: requests that are easy for all drafters
_FLAT_REQUEST_SD = 0.01  # of log gains, in families whose gains do not come from acceptance
_OFF_RATES = {1: 50.0, 4: 180.0, 16: 600.0, 64: 1500.0}

Generator = np.random.Generator
Gain = Callable[[str, int, float | None], Mapping[int, float]]
"""Log gain by batch size of a drafter, a K and a draft temperature."""


def physical_world(system: System, generator: Generator) -> World:
    """The world of a system, measured on a random choice of requests."""
    errors = system.request_std_errors(MAX_DRAFTS, _REQUEST_SD)
    return World(
        temperatures={name: tuple(d.temperature_scales) for name, d in system.drafters.items()},
        max_num_speculative_tokens=MAX_DRAFTS,
        off_tokens_per_s=system.off_tokens_per_s(BATCH_SIZES),
        log_gains=system.log_gains(BATCH_SIZES, MAX_DRAFTS),
        sample_shifts=_shifts(generator, errors, list(system.drafters)),
        request_std_errors=errors,
    )


def flat_world(generator: Generator, gain: Gain, idle: tuple[float, float] = (0.0, 0.0)) -> World:
    """A world of given gains, three drafters, and idle losses drawn between two fractions."""
    log_gains: dict[Arm, float] = {}
    errors: dict[SpeculativeConfig, float] = {}
    for name in NAMES:
        idle_gain = math.log1p(-generator.uniform(*idle))
        log_gains |= {(size, arm_config(name, 0)): idle_gain for size in BATCH_SIZES}
        for k, temperature in product(range(1, MAX_DRAFTS + 1), TEMPERATURES):
            config = arm_config(name, k, temperature)
            errors[config] = _FLAT_REQUEST_SD
            for size, value in gain(name, k, temperature).items():
                log_gains[size, config] = value
    return World(
        temperatures=dict.fromkeys(NAMES, TEMPERATURES),
        max_num_speculative_tokens=MAX_DRAFTS,
        off_tokens_per_s=_OFF_RATES,
        log_gains=log_gains,
        sample_shifts=_shifts(generator, errors, list(NAMES)),
        request_std_errors=errors,
    )


def _shifts(
    generator: Generator, errors: Mapping[SpeculativeConfig, float], drafters: list[str]
) -> dict[SpeculativeConfig, float]:
    """One draw of what the choice of requests does: common to all arms of a drafter."""
    common = generator.standard_normal()
    by_drafter = {
        name: math.sqrt(_SHARED) * common + math.sqrt(1 - _SHARED) * generator.standard_normal()
        for name in drafters
    }
    return {config: by_drafter[config.drafter] * error for config, error in errors.items()}

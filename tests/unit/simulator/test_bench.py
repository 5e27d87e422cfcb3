"""The simulated bench: real blocks in form, true in the mean, counted in cost."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from autotune.tuning.paired import PairedBench, PairedBlock, Tally
from engine.errors import EngineError
from policies.estimate import confidence_interval, paired_estimate
from policies.types import PairedEstimate
from tests.simulator.arms import arm_config
from tests.simulator.bench import SimulatedBench, SimulatedBlock, SimulatedTally
from tests.simulator.noise import Noise, Throttling
from tests.simulator.world import Drift, World

ARM = arm_config("a", 1)
GAINS = {(1, arm_config("a", 0)): -0.02, (1, ARM): 0.1}
WORLD = World(
    temperatures={"a": (None,)},
    max_num_speculative_tokens=1,
    off_tokens_per_s={1: 13.0},
    log_gains=GAINS,
)
SILENT = 1e9
"""Seconds of a window without noise to speak of."""


def estimate(bench: SimulatedBench, num_blocks: int) -> PairedEstimate:
    """The real estimate from simulated blocks."""
    blocks = [bench.measure(ARM, 1, "explore", index) for index in range(num_blocks)]
    return paired_estimate([block.block() for block in blocks if not block.disturbed])


def test_blocks_have_the_attributes_of_real_ones() -> None:
    """What the search reads from a real bench it finds here."""
    for real, simulated in ((PairedBlock, SimulatedBlock), (Tally, SimulatedTally)):
        assert [f.name for f in fields(real)] == [f.name for f in fields(simulated)]
    real_call = inspect.signature(PairedBench.measure).parameters
    assert list(real_call) == list(inspect.signature(SimulatedBench.measure).parameters)


def test_whole_tokens_do_not_blur_the_ratio() -> None:
    """At 13 tokens per second a window holds 6 or 7 tokens; the rates stay exact."""
    block = SimulatedBench(WORLD, Noise(clock_sd=0.0), 0, SILENT).measure(ARM, 1, "explore", 0)
    short = SimulatedBench(WORLD, Noise(), 0, 0.5).measure(ARM, 1, "explore", 0).block()
    assert short.baseline_s == pytest.approx(1.0, rel=0.5)
    rates = block.block()
    assert rates.baseline_tokens / rates.baseline_s == pytest.approx(13.0, rel=1e-4)
    assert rates.candidate_tokens / rates.candidate_s == pytest.approx(
        13.0 * math.exp(0.1), rel=1e-4
    )


def test_idle_drafters_can_be_measured() -> None:
    """K = 0 with a drafter loaded is an arm."""
    bench = SimulatedBench(WORLD, Noise(), 0, SILENT)
    block = bench.measure(arm_config("a", 0), 1, "validate", 0).block()
    ratio = block.candidate_tokens / block.candidate_s / 13.0
    baseline = block.baseline_tokens / block.baseline_s / 13.0
    assert math.log(ratio / baseline) == pytest.approx(-0.02, abs=1e-4)


@pytest.mark.parametrize(
    "noise",
    [
        Noise(),
        Noise(tails="t3"),
        Noise(throttling=Throttling(start=0.05, noticed=0.7)),
        Noise(autocorrelation=0.3),
    ],
    ids=["normal", "heavy", "throttled", "autocorrelated"],
)
def test_many_blocks_find_the_truth(noise: Noise) -> None:
    """Null: the estimate is unbiased under every noise.

    n = 8,000 blocks; 5 standard errors, doubled for autocorrelation; power above 0.999 against a
    bias of 1.2 %.
    """
    found = estimate(SimulatedBench(WORLD, noise, 3), 8_000)
    assert found.std_error < 0.0012
    assert abs(found.log_gain - 0.1) < 10 * found.std_error


def test_the_calibrated_cost_of_precision() -> None:
    """A 95 % half-width of 3 % takes 20 to 40 blocks of 2 s, as measured on the real machine.

    Of a number of blocks that was fixed beforehand; one that one may end at any time is wider.
    """
    widths = []
    for seed in range(50):
        found = replace(estimate(SimulatedBench(WORLD, Noise(), seed), 22), log_ratios=())
        low, high = confidence_interval(found, 0.95)
        widths.append((high - low) / 2)
    assert float(np.mean(widths)) == pytest.approx(0.03, rel=0.1)


def test_what_is_measured_is_the_choice_of_requests() -> None:
    """A shift is in every block, so no number of blocks averages it out."""
    shifted = replace(WORLD, sample_shifts={ARM: 0.02})
    assert estimate(SimulatedBench(shifted, Noise(), 0, SILENT), 2).log_gain == pytest.approx(
        0.12, abs=1e-3
    )


def test_gains_drift_with_device_time() -> None:
    """The first block sees the beginning, later ones what became of it."""
    drift = Drift(log_gains={**GAINS, (1, ARM): 0.3}, over_s=100 * SILENT)
    bench = SimulatedBench(replace(WORLD, drift=drift), Noise(), 0, SILENT)
    gains = []
    for index in range(22):
        block = bench.measure(ARM, 1, "explore", index).block()
        candidate = block.candidate_tokens / block.candidate_s
        gains.append(math.log(candidate / (block.baseline_tokens / block.baseline_s)))
    assert gains[0] == pytest.approx(0.1, abs=1e-3)
    assert gains[10] == pytest.approx(0.1 + 0.2 * 10 * 4 * 1.3 / 100, abs=1e-3)
    assert gains[-1] == pytest.approx(0.3, abs=1e-3)


def test_a_drafter_dies_after_its_blocks() -> None:
    """Blocks of all its arms count; failures cost time, and the others live on."""
    bench = SimulatedBench(replace(WORLD, fails_after={"a": 2}), Noise(), 0)
    bench.measure(ARM, 1, "explore", 0)
    bench.measure(arm_config("a", 0), 1, "validate", 0)
    assert not bench.dead
    for _ in range(2):
        with pytest.raises(EngineError, match="a: logits"):
            bench.measure(ARM, 1, "explore", 1)
    assert bench.dead == {"a"}
    assert bench.num_blocks == 4
    assert bench.blocks_by_stage == {"explore": 3, "validate": 1}
    assert bench.device_seconds == pytest.approx(4 * 4 * 0.5 * 1.3)


def test_the_same_calls_give_the_same_blocks() -> None:
    """The seed and the order of calls are all that matters."""
    noise = Noise(tails="t3", throttling=Throttling())
    first, again, other = (
        [SimulatedBench(WORLD, noise, seed).measure(ARM, 1, "explore", 0)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other

"""The noise of blocks has the spread, shape and memory that it should."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from tests.simulator.acceptance import Floats
from tests.simulator.noise import Noise, NoiseSource, Throttling, block_sd

ALPHA = 1e-6
QUIET = Noise(clock_sd=0.0)


def ratios(noise: Noise, count: int, *, batch_size: int = 1, seed: int = 0) -> Floats:
    """Log ratios of successive blocks of 2 s."""
    source = NoiseSource(noise, np.random.default_rng(seed))
    blocks = [source.next_block(batch_size, 2.0) for _ in range(count)]
    return np.array([block.log_candidate - block.log_baseline for block in blocks])


@pytest.mark.parametrize(
    ("batch_size", "sd"), [(1, 0.067), (4, 0.067), (16, 0.067), (64, 0.095), (256, 0.095)]
)
def test_calibrated_spread(batch_size: int, sd: float) -> None:
    """Null: the standard deviation of the block log ratio is the measured one.

    n = 4,000, two-sided chi-square test at alpha = 1e-6; power above 0.999 against 8 % more.
    """
    assert block_sd(batch_size, 2.0) == pytest.approx(sd)
    found = ratios(QUIET, 4000, batch_size=batch_size)
    statistic = float((found**2).sum()) / sd**2
    assert stats.chi2.ppf(ALPHA / 2, 4000) < statistic < stats.chi2.isf(ALPHA / 2, 4000)


def test_longer_blocks_are_quieter() -> None:
    """Four times the time, half the spread; sizes in between lie in between."""
    assert block_sd(1, 8.0) == pytest.approx(0.067 / 2)
    assert 0.067 < block_sd(32, 2.0) < 0.095


def test_heavy_tails_have_the_same_spread() -> None:
    """Null: blocks follow Student's t with 3 degrees of freedom, scaled to a standard deviation
    of 0.067.

    n = 5,000, Kolmogorov-Smirnov at alpha = 1e-6; a normal law of that spread is told apart.
    """
    found = ratios(replace(QUIET, tails="t3"), 5000) / 0.067
    assert stats.kstest(found * math.sqrt(3), "t", args=(3,)).pvalue > ALPHA
    assert stats.kstest(found, "norm").pvalue < ALPHA


def test_autocorrelation_keeps_the_spread() -> None:
    """Null: neighbours correlate by 0.5 and the variance stays.

    n = 20,000; 5 standard errors of the correlation are 0.03, of the variance 7 %.
    """
    found = ratios(replace(QUIET, autocorrelation=0.5), 20_000)
    assert np.corrcoef(found[:-1], found[1:])[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(found[:-2], found[2:])[0, 1] == pytest.approx(0.25, abs=0.04)
    assert float(np.mean(found**2)) == pytest.approx(0.067**2, rel=0.07)


def test_both_arms_share_the_clock() -> None:
    """A clock that drifts by 10 % leaves the ratio as it was, and moves both rates slowly."""
    source = NoiseSource(Noise(clock_sd=0.1), np.random.default_rng(0))
    blocks = [source.next_block(1, 2.0) for _ in range(20_000)]
    sums = np.array([block.log_candidate + block.log_baseline for block in blocks]) / 2
    assert float(np.std(sums)) == pytest.approx(0.1, rel=0.12)
    assert np.corrcoef(sums[:-1], sums[1:])[0, 1] > 0.9
    found = np.array([block.log_candidate - block.log_baseline for block in blocks])
    assert float(np.std(found)) == pytest.approx(0.067, rel=0.03)


def test_throttling_comes_in_episodes_and_is_partly_noticed() -> None:
    """Null: a share start / (start + 1 / length) of the blocks lies in episodes; three quarters of
    the windows' patterns slow something; of those the given share is flagged.

    n = 50,000; tolerances of 5 standard errors, widened by the length of the episodes.
    """
    model = Throttling(start=0.05, mean_blocks=4.0, window_share=0.5, slowdown=0.3, noticed=0.7)
    silent = replace(QUIET, throttling=model)
    source = NoiseSource(silent, np.random.default_rng(3))
    still = replace(QUIET, throttling=replace(model, slowdown=0.0))
    plain = NoiseSource(still, np.random.default_rng(3))
    slowdowns = {0.0, round(math.log(0.85), 9), round(math.log(0.7), 9)}
    slowed, flagged, hit = [], 0, 0
    for _ in range(50_000):
        block, same = source.next_block(1, 2.0), plain.next_block(1, 2.0)
        added = (
            block.log_baseline - same.log_baseline,
            block.log_candidate - same.log_candidate,
        )
        assert all(round(value, 9) in slowdowns for value in added)
        hit += any(added)
        flagged += block.flagged
        assert any(added) or not block.flagged
        slowed.append(added[1] - added[0])
    in_episode = 0.05 / (0.05 + 1 / 4)
    assert hit / 50_000 == pytest.approx(in_episode * 15 / 16, rel=0.1)
    assert flagged / hit == pytest.approx(0.7, abs=0.03)
    assert float(np.mean(slowed)) == pytest.approx(0.0, abs=5 * float(np.std(slowed)) / 200)


def test_one_lucky_block() -> None:
    """Exactly one block is 30 % faster, for the candidate alone."""
    plain = ratios(QUIET, 20)
    lucky = ratios(replace(QUIET, lucky_block=7), 20)
    added = np.zeros(20)
    added[7] = math.log(1.3)
    assert lucky - plain == pytest.approx(added)


def test_the_seed_is_all() -> None:
    """Same seed, same noise; another seed, another one."""
    noise = Noise(tails="t3", autocorrelation=0.3, throttling=Throttling())
    assert ratios(noise, 50, seed=1).tolist() == ratios(noise, 50, seed=1).tolist()
    assert ratios(noise, 50, seed=1).tolist() != ratios(noise, 50, seed=2).tolist()

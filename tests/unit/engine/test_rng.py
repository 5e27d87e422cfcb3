"""Counter-based uniforms: values, range, keys, and the quality that sampling needs."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2

from engine.rng import Purpose, uniform

ALPHA = 1e-6 / 7  # family-wise 1e-6 over the chi-square tests of this file


def reference(seed: int, round_index: int, position: int, purpose: int) -> float:
    """The same generator in numpy's wrapping integers."""
    with np.errstate(over="ignore"):
        state = np.uint64(0)
        for part in (seed % 2**64, round_index, position, purpose):
            state = (state ^ np.uint64(part)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return float(int(state) >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63, 2**64 - 1])
def test_values_do_not_change(seed: int) -> None:
    """Stored seeds keep their meaning: every value equals a second implementation's."""
    for round_index, position, purpose in product((0, 1, 7), (0, 5, 8191), Purpose):
        assert uniform(seed, round_index, position, purpose) == reference(
            seed, round_index, position, purpose
        )


def test_values_are_multiples_of_two_to_the_minus_53_below_one() -> None:
    """Each value is in [0, 1) and scales to an integer, so that no float rounding is left."""
    for position in range(2000):
        scaled = uniform(3, 1, position, Purpose.EMIT) * 2**53
        assert scaled.is_integer()
        assert 0 <= scaled < 2**53


@pytest.mark.parametrize("seed", [-1, -(2**70) + 5, 2**64, 2**200 + 17])
def test_any_integer_is_a_seed(seed: int) -> None:
    """Seeds count modulo 2^64."""
    assert uniform(seed, 1, 2, Purpose.DRAFT) == uniform(seed % 2**64, 1, 2, Purpose.DRAFT)


def test_every_part_of_the_key_counts() -> None:
    """No two keys of a grid over seeds, rounds, positions and purposes share a value."""
    keys = product(range(12), range(12), range(12), Purpose)
    counts = Counter(uniform(*key) for key in keys)

    assert max(counts.values()) == 1
    assert len(counts) == 12**3 * len(Purpose)


def chi_square_p(cells: Counter[tuple[int, ...]], num_cells: int) -> float:
    """P-value of equal probabilities over `num_cells` cells."""
    expected = cells.total() / num_cells
    statistic = sum((count - expected) ** 2 / expected for count in cells.values())
    statistic += (num_cells - len(cells)) * expected
    return float(chi2.sf(statistic, num_cells - 1))


def test_values_are_uniform() -> None:
    """Null: 64 equal cells, n = 20,000; w = 0.09 is noticed with probability 0.999."""
    values = (uniform(seed, 1, 20, Purpose.EMIT) for seed in range(20_000))
    cells: Counter[tuple[int, ...]] = Counter((int(value * 64),) for value in values)

    assert chi_square_p(cells, 64) > ALPHA


@pytest.mark.parametrize(
    "neighbour",
    [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 1, -1, 0), (1, 0, -1, 0)],
    ids=["seed", "round", "position", "purpose", "round and position", "seed and position"],
)
def test_neighbouring_keys_are_independent(neighbour: tuple[int, int, int, int]) -> None:
    """Null: pairs fill 8 x 8 equal cells, n = 16,000; w = 0.1 is noticed with probability 0.999.

    Seeds count from 0, as the seeds of a batch of requests do.
    """
    cells: Counter[tuple[int, ...]] = Counter()
    for seed, position in product(range(400), range(1, 81, 2)):
        key = (seed * 2, 3, position, 1)
        first, second = uniform(*key[:3], Purpose.DRAFT), _shifted(key, neighbour)
        cells[int(first * 8), int(second * 8)] += 1

    assert chi_square_p(cells, 64) > ALPHA


def _shifted(key: tuple[int, int, int, int], by: tuple[int, int, int, int]) -> float:
    seed, round_index, position, purpose = (a + b for a, b in zip(key, by, strict=True))
    return uniform(seed, round_index, position, Purpose(purpose))

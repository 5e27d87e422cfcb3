"""The belief about gains, against Gaussian conditioning written out block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, median
from typing import Any

import numpy as np
import pytest

from autotune.tuning.belief import Belief, Cell, Floats
from policies.types import SpeculativeConfig
from tests.support.scripted_search import config

ALPHA = 1e-6
SIZES = (1, 16)
ARMS = [config("a", k) for k in (1, 2, 3, 6)] + [
    config("a", 2, 0.7),
    config("b", 1),
    config("b", 3),
]
CELLS: list[Cell] = [(size, arm) for size in SIZES for arm in ARMS]
PREDICTED = {cell: 0.3 - 0.02 * i for i, cell in enumerate(CELLS)}
SCALES = {0.5: 0.2, 1.0: 0.4, 2.0: 0.2, 4.0: 0.1, 8.0: 0.1}
"""How many times worse predictions may be than meant, and how likely that is beforehand."""

Blocks = Mapping[Cell, Sequence[float]]


def residual_covariance(one: Cell, other: Cell) -> float:
    """Of the log residuals of two cells at scale 1, part by part."""
    (size, arm), (other_size, other_arm) = one, other
    away = arm.num_speculative_tokens - other_arm.num_speculative_tokens
    near = math.exp(-(away**2) / (2 * 2.0**2))
    same_drafter = arm.drafter == other_arm.drafter
    same_temperature = arm.draft_temperature == other_arm.draft_temperature
    total = 0.0
    if same_drafter:
        total += 0.03**2
    if same_drafter and size == other_size:
        total += 0.03**2
    if same_drafter and same_temperature and size == other_size:
        total += 0.03**2 * near
    if size == other_size:
        total += 0.02**2 * near
    if one == other:
        total += 0.03**2
    return total


def block_sd(blocks: Blocks, size: int) -> float:
    """Eight blocks of 0.07 known beforehand, and the spread of every arm's about its median."""
    squares, count = 8 * 0.07**2, 8
    for (at, _), values in blocks.items():
        if at == size and len(values) > 1:
            squares += sum(min(abs(v - median(values)), 3 * 0.07) ** 2 for v in values)
            count += len(values) - 1
    return math.sqrt(squares / count)


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of all cells, and the scale behind them."""

    mean: Floats
    covariance: Floats
    scale: float


def posterior(cells: Sequence[Cell], predicted: Mapping[Cell, float], blocks: Blocks) -> Posterior:
    """Condition on every block as an observation of its own, at the likeliest scale."""
    flat = [(cell, value) for cell, values in blocks.items() for value in values]
    prior = np.array([[residual_covariance(a, b) for b in cells] for a in cells])
    start = np.array([predicted[cell] for cell in cells])
    seen = [list(cells).index(cell) for cell, _ in flat]
    gap = np.array([value - predicted[cell] for cell, value in flat])
    noise = np.diag([block_sd(blocks, cell[0]) ** 2 for cell, _ in flat])
    found: list[tuple[float, Posterior]] = []
    for scale, chance in SCALES.items():
        all_of_it = scale**2 * prior
        joint = all_of_it[np.ix_(seen, seen)] + noise
        inverse = np.linalg.inv(joint)
        cross = all_of_it[:, seen]
        score = math.log(chance) - (gap @ inverse @ gap + np.linalg.slogdet(joint)[1]) / 2
        mean, covariance = start + cross @ inverse @ gap, all_of_it - cross @ inverse @ cross.T
        found.append((score, Posterior(mean, covariance, scale)))
    return max(found, key=lambda one: one[0])[1]


def believing(blocks: Blocks, *, seed: int = 0, **changes: Any) -> Belief:
    """A belief that has seen some blocks."""
    belief = Belief(changes.get("predicted", PREDICTED), seed)
    for cell, values in blocks.items():
        for value in values:
            belief.observe(cell, value)
    return belief


def random_blocks(seed: int, error: float) -> dict[Cell, list[float]]:
    """One to four blocks of some cells, off by `error` together and by a little each."""
    generator = np.random.default_rng(seed)
    seen = generator.choice(len(CELLS), 1 + seed % 7, replace=False)
    return {
        CELLS[i]: (
            PREDICTED[CELLS[i]] + error + 0.02 * generator.standard_normal(1 + (seed + i) % 4)
        ).tolist()
        for i in seen
    }


def test_without_blocks_the_prediction_is_believed() -> None:
    """The mean is the prediction; the spread is that of all parts together."""
    belief = believing({})

    assert belief.cells == tuple(CELLS)
    assert belief.mean().tolist() == list(PREDICTED.values())
    assert belief.variance() == pytest.approx(4 * 0.03**2 + 0.02**2)
    assert belief.block_sd(1) == pytest.approx(0.07)


@pytest.mark.parametrize("error", [0.0, 0.05, -0.4])
@pytest.mark.parametrize("seed", range(6))
def test_the_posterior_is_gaussian_conditioning(seed: int, error: float) -> None:
    """Means and variances of all cells, measured or not, at the likeliest of all scales."""
    blocks = random_blocks(seed, error)
    wanted = posterior(CELLS, PREDICTED, blocks)

    belief = believing(blocks)

    assert belief.mean() == pytest.approx(wanted.mean, abs=1e-7)
    assert belief.variance() == pytest.approx(np.diagonal(wanted.covariance), abs=1e-7)


def test_every_block_changes_what_is_believed_at_once() -> None:
    """The order of the blocks does not matter, and asking in between changes nothing."""
    blocks = random_blocks(5, 0.1)
    asked, other = Belief(PREDICTED, 0), Belief(PREDICTED, 0)
    for cell, values in blocks.items():
        for value in values:
            asked.observe(cell, value)
            asked.mean()
    for cell, values in reversed(blocks.items()):
        for value in values:
            other.observe(cell, value)

    assert asked.mean() == pytest.approx(other.mean(), abs=1e-12)
    assert asked.mean() != pytest.approx(list(PREDICTED.values()), abs=1e-3)


def test_a_measured_arm_tells_about_its_neighbours() -> None:
    """The nearer, the more; of another drafter at another batch size it says nothing."""
    belief = believing({(1, config("a", 2)): [PREDICTED[1, config("a", 2)] + 0.1] * 4})

    moved = dict(zip(CELLS, belief.mean() - list(PREDICTED.values()), strict=True))

    order = [
        (1, config("a", 2)),
        (1, config("a", 3)),
        (1, config("a", 6)),
        (16, config("a", 6)),
        (16, config("b", 3)),
    ]
    found = [moved[cell] for cell in order]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 5
    assert moved[1, config("a", 3)] > moved[1, config("a", 2, 0.7)] > moved[1, config("b", 1)] > 0
    assert moved[16, config("b", 3)] == 0


@pytest.mark.parametrize(
    ("factor", "scale"), [(0.1, 0.5), (1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (12.0, 8.0)]
)
def test_how_wrong_predictions_are_is_learnt(factor: float, scale: float) -> None:
    """From residuals that are so many times larger, of many arms, follows the doubt elsewhere.

    A cell that shares nothing with the measured ones keeps its mean; its variance is the prior's
    times the square of the scale.
    """
    arms = [config(name, k) for name in "abcdefgh" for k in (1, 3, 5, 8)]
    cells: list[Cell] = [(1, arm) for arm in arms]
    stranger: Cell = (16, config("z", 1))
    covariance = np.array([[residual_covariance(a, b) for b in cells] for a in cells])
    root = np.linalg.cholesky(covariance)
    residuals = factor * root @ np.random.default_rng(3).standard_normal(len(cells))
    blocks = {cell: [0.1 + r] * 40 for cell, r in zip(cells, residuals.tolist(), strict=True)}

    belief = believing(blocks, predicted=dict.fromkeys([*cells, stranger], 0.1))

    assert belief.variance()[-1] == pytest.approx(scale**2 * (4 * 0.03**2 + 0.02**2))
    assert belief.mean()[-1] == pytest.approx(0.1)


def test_one_wild_block_is_pulled_closer() -> None:
    """One that is 65 % too fast, among six, moves the belief by little more than half as much."""
    cell = (1, config("a", 3))
    honest = [PREDICTED[cell] + error for error in (0.02, -0.03, 0.0, 0.04, -0.02, -0.01)]
    lucky = [*honest[:-1], honest[-1] + 0.5]

    clean = posterior(CELLS, PREDICTED, {cell: honest}).mean
    fooled = posterior(CELLS, PREDICTED, {cell: lucky}).mean
    found = believing({cell: lucky}).mean()

    i = CELLS.index(cell)
    assert 0 < found[i] - clean[i] < 0.55 * (fooled[i] - clean[i])


def test_what_is_wild_is_judged_by_all_that_is_known() -> None:
    """Blocks within 2.5 deviations of the belief are taken as they are; one further is not."""
    cell = (1, config("a", 3))
    near = [PREDICTED[cell] + error for error in (-0.1, 0.1, -0.12, 0.12)]
    far = [*near, PREDICTED[cell] + 0.6]

    i = CELLS.index(cell)
    assert believing({cell: near}).mean()[i] == pytest.approx(
        posterior(CELLS, PREDICTED, {cell: near}).mean[i], abs=1e-9
    )
    assert believing({cell: far}).mean()[i] < posterior(CELLS, PREDICTED, {cell: far}).mean[i]


def test_a_single_block_is_taken_as_it_is() -> None:
    """There is nothing yet that could contradict it."""
    blocks = {(1, config("b", 1)): [1.0]}

    assert believing(blocks).mean() == pytest.approx(
        posterior(CELLS, PREDICTED, blocks).mean, abs=1e-7
    )


def test_the_spread_of_blocks_is_learnt_for_every_batch_size() -> None:
    """Eight blocks of 0.07 are known beforehand; batch sizes do not tell about each other."""
    generator = np.random.default_rng(4)
    noisy = {(1, arm): (0.15 * generator.standard_normal(9)).tolist() for arm in ARMS[:3]}
    quiet = {(16, arm): (0.03 * generator.standard_normal(9)).tolist() for arm in ARMS[:3]}
    blocks: dict[Cell, list[float]] = {**noisy, **quiet}

    belief = believing(blocks)

    for size in SIZES:
        assert belief.block_sd(size) == pytest.approx(block_sd(blocks, size))
    assert belief.block_sd(1) > 0.1 > 0.05 > belief.block_sd(16)


def test_a_wild_block_does_not_spoil_the_spread() -> None:
    """It counts as 0.21 from the median, however far it is; single blocks have no spread."""
    cell = (1, config("a", 1))
    spreads = [
        believing({cell: [0.1, 0.12, 0.08, wild], (1, config("b", 1)): [9.0]}).block_sd(1)
        for wild in (0.4, 4.0)
    ]

    assert spreads[0] == pytest.approx(spreads[1])
    assert spreads[0] < 0.1


def test_blocks_are_counted() -> None:
    """By cell."""
    belief = believing({CELLS[0]: [0.1, 0.2], CELLS[5]: [0.3]})

    assert [belief.num_blocks(cell) for cell in (CELLS[0], CELLS[5], CELLS[6])] == [2, 1, 0]


@pytest.mark.parametrize("seed", [0, 4])
def test_samples_have_the_posterior_law(seed: int) -> None:
    """Null: mean and covariance of the samples are those of the conditioned Gaussian.

    n = 40,000 samples of 14 cells; z tests of 14 means and 105 covariances, each at 1e-6 / 119
    (Bonferroni). A covariance that is off by 5 % is seen with a power above 0.999.
    """
    blocks = random_blocks(seed, 0.05) if seed else {}
    wanted = posterior(CELLS, PREDICTED, blocks) if blocks else None
    belief, n = believing(blocks), 40_000
    mean = wanted.mean if wanted else np.array(list(PREDICTED.values()))
    covariance = (
        wanted.covariance
        if wanted
        else np.array([[residual_covariance(a, b) for b in CELLS] for a in CELLS])
    )

    samples = belief.samples(n)

    assert samples.shape == (n, len(CELLS))
    limit = NormalDist().inv_cdf(1 - ALPHA / 119 / 2)
    variance = np.diagonal(covariance)
    z_mean = (samples.mean(axis=0) - mean) / np.sqrt(variance / n)
    found = np.cov(samples, rowvar=False)
    z = (found - covariance) / np.sqrt((np.outer(variance, variance) + covariance**2) / n)
    assert np.abs(z_mean).max() < limit
    assert np.abs(z).max() < limit
    # The same two figures as the belief states them.
    assert belief.mean() == pytest.approx(mean, abs=1e-7)
    assert belief.variance() == pytest.approx(variance, abs=1e-7)


def test_the_seed_decides_the_samples() -> None:
    """Equal seeds and blocks give equal samples; they go on from call to call."""
    blocks = random_blocks(3, 0.05)
    one, same, other = believing(blocks), believing(blocks), believing(blocks, seed=1)

    first = one.samples(5)

    assert first.tolist() == same.samples(5).tolist()
    assert first.tolist() != other.samples(5).tolist()
    assert first.tolist() != one.samples(5).tolist()


def test_many_cells_are_no_trouble() -> None:
    """Four hundred cells, with draft temperatures that share everything but their own part."""
    arms = [
        SpeculativeConfig(drafter=name, num_speculative_tokens=k, draft_temperature=temperature)
        for name, k, temperature in product("abcd", range(1, 9), (None, 0.0, 0.7))
    ]
    cells = {(size, arm): 0.1 for size in (1, 4, 16, 64) for arm in arms}
    belief = Belief(cells, 0)
    for i, cell in enumerate(cells):
        belief.observe(cell, 0.1 + 0.01 * (i % 5))

    assert np.isfinite(belief.samples(10)).all()
    assert (belief.variance() > 0).all()

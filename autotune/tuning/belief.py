"""What is believed about the gain of every arm: the model's prediction and a residual.

The prediction (replayed tokens per round over step times) is never taken for a measurement. Its
error is a Gaussian process over the arms, whose parts are what goes wrong in practice: a drafter
that is dearer or worse than thought, everywhere or at one batch size; one draft temperature; a
stretch of K; the cost of verifying at a batch size; and what one arm has of its own. So a measured
arm tells about its neighbours, and how wrong predictions are altogether is learnt on the way.

Source: Rasmussen and Williams 2006, chapters 2 and 5; samples by Matheron's rule (Wilson et al.
2020).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from policies.types import SpeculativeConfig

Floats = NDArray[np.float64]
Cell = tuple[int, SpeculativeConfig]
"""A batch size and an arm."""

# Standard deviations of the log residual's parts where predictions are as good as they are meant
# to be, and how far neighbouring K share theirs.
_DRAFTER_SD = 0.03
_DRAFTER_AT_SIZE_SD = 0.03
_STRETCH_SD = 0.03
_SIZE_SD = 0.02
_OWN_SD = 0.03
_REACH = 2.0
_SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)  # how many times worse they may turn out to be
_SCALE_PRIOR = (0.2, 0.4, 0.2, 0.1, 0.1)
_BLOCK_SD = 0.07  # of a block's log ratio, before any was measured
_PRIOR_BLOCKS = 8  # that this is worth
_OUTLIER_SDS = 2.5  # beyond which a block counts as that far away only
_JITTER = 1e-9


@dataclass(frozen=True, slots=True)
class _Fit:
    """A belief after conditioning.

    Attributes:
        scale: How many times worse predictions are than they are meant to be.
        seen: [n], measured cells.
        values: [n], their mean log ratios.
        noise_sd: [n], of these means.
        gain: [cells, n], what a deviation of a mean moves.
        mean: [cells].
    """

    scale: float
    seen: NDArray[np.int64]
    values: Floats
    noise_sd: Floats
    gain: Floats
    mean: Floats


class Belief:
    """Gaussian belief about the log gains of all cells."""

    def __init__(self, predictions: Mapping[Cell, float], seed: int) -> None:
        """Start from predictions alone.

        Args:
            predictions: Predicted log gain over unloaded off of every cell.
            seed: Of the samples.
        """
        self.cells = tuple(predictions)
        self.index = {cell: i for i, cell in enumerate(self.cells)}
        self._predicted = np.array([predictions[cell] for cell in self.cells])
        self._covariance = _covariance(self.cells)
        jitter = _JITTER * np.eye(len(self.cells))
        self._root = np.linalg.cholesky(self._covariance + jitter)
        self._generator = np.random.default_rng(seed)
        self._blocks: dict[int, list[float]] = defaultdict(list)
        self._fit: _Fit | None = None

    def observe(self, cell: Cell, log_ratio: float) -> None:
        """Take in one block of a cell."""
        self._blocks[self.index[cell]].append(log_ratio)
        self._fit = None

    def num_blocks(self, cell: Cell) -> int:
        """Blocks taken in."""
        return len(self._blocks.get(self.index[cell], ()))

    def block_sd(self, batch_size: int) -> float:
        """Standard deviation of one block's log ratio at a batch size."""
        squares, freedom = _BLOCK_SD**2 * _PRIOR_BLOCKS, float(_PRIOR_BLOCKS)
        for i, values in self._blocks.items():
            if self.cells[i][0] == batch_size and len(values) > 1:
                # By the median a single wild block counts little.
                spread = np.abs(np.array(values) - np.median(values))
                capped = np.minimum(spread, 3 * _BLOCK_SD)
                squares += float((capped**2).sum())
                freedom += len(values) - 1
        return sqrt(squares / freedom)

    def mean(self) -> Floats:
        """[cells], the expected log gains."""
        return self._fitted().mean

    def samples(self, count: int) -> Floats:
        """[count, cells], log gains as they may be."""
        fit = self._fitted()
        normals = self._generator.standard_normal((len(self.cells), count))
        prior = fit.scale * (self._root @ normals)
        drawn: Floats = (self._predicted[:, None] + prior).T
        if not len(fit.seen):
            return drawn
        noise = fit.noise_sd[:, None] * self._generator.standard_normal((len(fit.seen), count))
        gap = (fit.values - self._predicted[fit.seen])[:, None] - prior[fit.seen] - noise
        drawn += (fit.gain @ gap).T
        return drawn

    def variance(self) -> Floats:
        """[cells], of the log gains."""
        fit = self._fitted()
        prior: Floats = fit.scale**2 * np.diagonal(self._covariance)
        if not len(fit.seen):
            return prior
        cross = fit.scale**2 * self._covariance[:, fit.seen]
        left: Floats = np.maximum(prior - (fit.gain * cross).sum(axis=1), 0.0)
        return left

    def _fitted(self) -> _Fit:
        if self._fit is None:
            self._fit = self._make_fit()
        return self._fit

    def _make_fit(self) -> _Fit:
        """Condition on all blocks; those far from what the others say are pulled closer."""
        seen = np.array(sorted(self._blocks), dtype=np.int64)
        if not len(seen):
            return _Fit(1.0, seen, np.empty(0), np.empty(0), np.empty((0, 0)), self._predicted)
        counts = np.array([len(self._blocks[i]) for i in seen])
        sds = {size: self.block_sd(size) for size in {cell[0] for cell in self.cells}}
        block_sds = np.array([sds[self.cells[i][0]] for i in seen])
        noise_sd = block_sds / np.sqrt(counts)
        values = np.array([float(np.mean(self._blocks[i])) for i in seen])
        fit = self._condition(seen, values, noise_sd)
        for _ in range(2):
            centre = fit.mean[seen]
            reach = _OUTLIER_SDS * block_sds
            for j, i in enumerate(seen):
                if counts[j] > 1:
                    low, high = centre[j] - reach[j], centre[j] + reach[j]
                    values[j] = np.clip(self._blocks[i], low, high).mean()
            fit = self._condition(seen, values, noise_sd)
        return fit

    def _condition(self, seen: NDArray[np.int64], values: Floats, noise_sd: Floats) -> _Fit:
        gap = values - self._predicted[seen]
        own = self._covariance[np.ix_(seen, seen)]
        best: tuple[float, float, Floats] | None = None
        for scale, share in zip(_SCALES, _SCALE_PRIOR, strict=True):
            joint = scale**2 * own + np.diag(noise_sd**2)
            root = np.linalg.cholesky(joint)
            whitened = np.linalg.solve(root, gap)
            evidence = log(share) - 0.5 * float(whitened @ whitened)
            evidence -= float(np.log(np.diagonal(root)).sum())
            if best is None or evidence > best[0]:
                best = evidence, scale, joint
        assert best is not None
        _, scale, joint = best
        cross = scale**2 * self._covariance[:, seen]
        gain: Floats = np.linalg.solve(joint, cross.T).T.astype(np.float64)
        return _Fit(scale, seen, values, noise_sd, gain, self._predicted + gain @ gap)


def _covariance(cells: Sequence[Cell]) -> Floats:
    """[cells, cells] of the log residual."""
    sizes = np.array([size for size, _ in cells])
    names = np.array([config.drafter for _, config in cells])
    temperatures = np.array([str(config.draft_temperature) for _, config in cells])
    ks = np.array([config.num_speculative_tokens for _, config in cells], dtype=np.float64)
    same_size = sizes[:, None] == sizes
    same_drafter = names[:, None] == names
    same_kind = same_drafter & (temperatures[:, None] == temperatures)
    near = np.exp(-0.5 * ((ks[:, None] - ks) / _REACH) ** 2)
    covariance: Floats = (
        _DRAFTER_SD**2 * same_drafter
        + _DRAFTER_AT_SIZE_SD**2 * (same_drafter & same_size)
        + _STRETCH_SD**2 * (same_kind & same_size) * near
        + _SIZE_SD**2 * same_size * near
        + _OWN_SD**2 * np.eye(len(cells))
    )
    return covariance

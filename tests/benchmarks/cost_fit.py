"""The cost model of a verify pass, fitted to measured rounds by relative error.

The linear layers wait for their weights or for the arithmetic, whichever takes longer (the
roofline of Williams et al. 2009). Near the knee both count, so a p-norm joins them instead of a
maximum. Everything else is added: fixed parts, attention, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

_Array = NDArray[np.float64]
_LINEAR = ("weight_bytes", "flops")
_SHARPNESS_LOW, _SHARPNESS_START, _SHARPNESS_HIGH = 1.0, 2.0, 16.0  # 1 adds, 16 is a maximum
_TINY_S = 1e-12  # keeps the p-norm of nothing defined


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """What a verify pass has to do; the model's only view of it.

    Attributes:
        rounds: Always 1: what a pass costs whatever it does.
        layers: Layers of the target.
        rows: Sequences.
        sampled_tokens: Tokens verified by a distribution instead of the most likely token.
        kv_bytes: Keys and values read.
        attention_flops: Operations of the attention.
        weight_bytes: Weights of the linear layers and the head.
        flops: Operations of the linear layers and the head.
    """

    rounds: float = 1.0
    layers: float
    rows: float
    sampled_tokens: float
    kv_bytes: float
    attention_flops: float
    weight_bytes: float
    flops: float


_TERMS = tuple(field.name for field in fields(RoundWork))
_ROOF = [_TERMS.index(name) for name in _LINEAR]
_ADDED = [index for index, name in enumerate(_TERMS) if name not in _LINEAR]


@dataclass(frozen=True, slots=True)
class CostModel:
    """A fitted model.

    Attributes:
        seconds_per: Seconds per unit of each field of `RoundWork`, none below 0.
        std_error: Standard error of each, from the residuals and the curvature; far larger than
            the value where the cells cannot tell it from another.
        sharpness: p of the p-norm.
    """

    seconds_per: dict[str, float]
    std_error: dict[str, float]
    sharpness: float

    def seconds(self, work: RoundWork) -> float:
        """Predicted time of a pass."""
        values = np.array([[*self.seconds_per.values(), self.sharpness]]).ravel()
        return float(_predict(values, np.array([astuple(work)], dtype=np.float64))[0])


def fit_cost(works: Sequence[RoundWork], seconds: Sequence[float]) -> CostModel:
    """Least squares over relative errors, so that small and large batches count alike.

    Args:
        works: At least as many as there are parameters.
        seconds: Measured, of each.

    Raises:
        ValueError: There are fewer cells than parameters.
    """
    if len(works) <= len(_TERMS):
        raise ValueError(f"{len(works)} cells: a fit needs more than {len(_TERMS)}")
    amounts = np.array([astuple(work) for work in works], dtype=np.float64)
    measured = np.array(seconds, dtype=np.float64)
    # In units in which 1 means: this term alone explains the whole time of a typical cell. A term
    # that no cell has costs nothing.
    present = amounts.max(axis=0) > 0
    unit = np.zeros(len(_TERMS))
    unit[present] = np.median(measured) / np.array(
        [np.median(column[column > 0]) for column in amounts[:, present].T]
    )
    start = np.array([*np.full(len(_TERMS), 1 / len(_TERMS)), _SHARPNESS_START])
    lowest = np.array([*np.zeros(len(_TERMS)), _SHARPNESS_LOW])
    highest = np.array([*np.full(len(_TERMS), np.inf), _SHARPNESS_HIGH])

    def residuals(values: _Array) -> _Array:
        scaled = np.array([*(values[:-1] * unit), values[-1]])
        return _predict(scaled, amounts) / measured - 1

    found = least_squares(residuals, start, bounds=(lowest, highest), x_scale="jac")
    free = max(len(works) - len(start), 1)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * (2 * found.cost / free)
    variance = np.maximum(np.diag(covariance)[:-1], 0.0)  # rounding goes below zero
    errors = np.sqrt(variance) * unit
    return CostModel(
        dict(zip(_TERMS, (found.x[:-1] * unit).tolist(), strict=True)),
        dict(zip(_TERMS, errors.tolist(), strict=True)),
        float(found.x[-1]),
    )


def _predict(values: _Array, amounts: _Array) -> _Array:
    """Seconds of each row of `amounts` by seconds per unit and, last in `values`, the sharpness."""
    costs = amounts * values[:-1]
    roof, power = costs[:, _ROOF], values[-1]
    top = np.maximum(roof.max(axis=1, keepdims=True), _TINY_S)
    joined = top[:, 0] * ((roof / top) ** power).sum(axis=1) ** (1 / power)
    return np.asarray(costs[:, _ADDED].sum(axis=1) + joined)

"""How far off a fitted model is on cells that it has not seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

_Work = TypeVar("_Work")

Fit = Callable[[Sequence[_Work], Sequence[float]], Callable[[_Work], float]]
"""From works and their measured seconds to a prediction of seconds."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Sizes of relative errors.

    Attributes:
        median: Half of them are at most this.
        p95: 95 % of them are at most this.
        max: The largest.
    """

    median: float
    p95: float
    max: float


def held_out_predictions(
    fit: Fit[_Work],
    works: Sequence[_Work],
    seconds: Sequence[float],
    *,
    num_folds: int,
    seed: int = 0,
) -> list[float]:
    """Predicted seconds of every cell by the model fitted to the other folds.

    Args:
        fit: Makes a prediction from cells.
        works: What each cell does.
        seconds: What each cell took.
        num_folds: Groups that are left out in turn, at least 2; no more than there are cells
            are used.
        seed: Of the split into folds.

    Raises:
        ValueError: There are fewer than two folds or cells.
    """
    num_folds = min(num_folds, len(works))
    if num_folds < 2:
        raise ValueError(f"num_folds = {num_folds}: needs two folds and two cells")
    order = list(range(len(works)))
    random.Random(seed).shuffle(order)
    predicted = [0.0] * len(works)
    for fold in range(num_folds):
        left_out = order[fold::num_folds]
        kept = sorted(set(order) - set(left_out))
        predict = fit([works[i] for i in kept], [seconds[i] for i in kept])
        for i in left_out:
            predicted[i] = predict(works[i])
    return predicted


def summarise(errors: Sequence[float]) -> ErrorSummary:
    """Sizes of at least one error; each quantile is an error that occurred."""
    sizes = sorted(abs(error) for error in errors)

    def quantile(share: float) -> float:
        return sizes[ceil(share * len(sizes)) - 1]

    return ErrorSummary(quantile(0.5), quantile(0.95), sizes[-1])

"""Errors on cells that a model has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.benchmarks.held_out import held_out_predictions, summarise

WORKS = list(range(10))
SECONDS = [float(2**work) for work in WORKS]


def test_a_cell_is_predicted_without_its_own_measurement() -> None:
    """A model that knows its training cells by heart knows none of those it is asked about."""

    def by_heart(works: Sequence[int], seconds: Sequence[float]) -> Callable[[int], float]:
        known = dict(zip(works, seconds, strict=True))
        return lambda work: known.get(work, -1.0)

    assert held_out_predictions(by_heart, WORKS, SECONDS, num_folds=5) == [-1.0] * 10


def test_every_fold_is_fitted_to_all_the_others() -> None:
    """Two folds of ten cells: each half is predicted by the sum over the other."""

    def total(works: Sequence[int], seconds: Sequence[float]) -> Callable[[int], float]:
        assert seconds == [SECONDS[work] for work in works]
        return lambda _: sum(seconds)

    predicted = held_out_predictions(total, WORKS, SECONDS, num_folds=2)
    assert len(set(predicted)) == 2
    assert sum(set(predicted)) == sum(SECONDS)
    assert all(int(p) & int(s) == 0 for p, s in zip(predicted, SECONDS, strict=True))


def test_more_folds_than_cells_leave_out_one_each() -> None:
    """Three cells in five folds are three folds of one."""
    sizes = []

    def fit(works: Sequence[int], seconds: Sequence[float]) -> Callable[[int], float]:
        sizes.append(len(works))
        return lambda _: 1.0

    held_out_predictions(fit, WORKS[:3], SECONDS[:3], num_folds=5)
    assert sizes == [2, 2, 2]


def test_one_cell_is_refused() -> None:
    """Nothing is left to fit."""
    with pytest.raises(ValueError, match="two cells"):
        held_out_predictions(lambda w, s: lambda _: 1.0, [1], [1.0], num_folds=5)


def test_summary_ignores_the_sign() -> None:
    """The quantiles of twenty errors of 1 to 20 percent, half of them negative."""
    errors = [(-1) ** percent * percent / 100 for percent in range(1, 21)]
    found = summarise(errors)
    assert (found.median, found.p95, found.max) == (0.10, 0.19, 0.20)

"""The cost model of proposals."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.benchmarks.draft_fit import DraftModel, DraftWork, fit_draft

WORKS = [DraftWork(rows=rows, num_drafts=k) for rows in (1, 16) for k in range(1, 8)]


def test_known_parameters_are_recovered() -> None:
    """Times made by a model give it back."""
    truth = DraftModel(first_s=3e-3, first_row_s=2e-4, further_s=2e-3, further_row_s=1e-4)
    found = fit_draft(WORKS, [truth.seconds(work) for work in WORKS])
    assert asdict(found) == pytest.approx(asdict(truth))


def test_seconds_add_up() -> None:
    """A first draft, then two further ones, of four rows each."""
    model = DraftModel(first_s=1.0, first_row_s=0.1, further_s=10.0, further_row_s=0.01)
    assert model.seconds(DraftWork(rows=4, num_drafts=3)) == pytest.approx(1.4 + 2 * 10.04)


def test_errors_count_relative_to_the_time() -> None:
    """A lookup of constant microseconds is fitted as well as the proposals that take long."""
    seconds = [1e-5 if work.rows == 1 else 1.0 for work in WORKS]
    model = fit_draft(WORKS, seconds)
    assert model.seconds(WORKS[0]) == pytest.approx(1e-5, rel=0.01)
    assert min(asdict(model).values()) >= 0

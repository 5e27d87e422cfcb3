"""Choosing the settings in which a peer is fastest."""

from __future__ import annotations

from tests.benchmarks.modes import (
    Mode,
    best_modes,
    other_launches,
    tasks_won,
    worth_compiling,
)

FLOAT = Mode(dtype="float32")
BFLOAT = Mode(dtype="bfloat16")


def test_every_task_gets_its_own_best_mode() -> None:
    """A mode that is best at one task does not decide the others."""
    rates = {FLOAT: {"1": 20.0, "64": 300.0}, BFLOAT: {"1": 25.0, "64": 200.0}}
    assert best_modes(rates) == {"1": BFLOAT, "64": FLOAT}


def test_a_mode_tried_on_some_tasks_competes_on_these_alone() -> None:
    """Tasks that a mode has no rate for are left to the others."""
    launched = Mode(dtype="float32", launch="engine process")
    rates = {FLOAT: {"1": 20.0, "64": 300.0}, launched: {"64": 310.0}}
    assert best_modes(rates) == {"1": FLOAT, "64": launched}


def test_the_first_of_equals_is_chosen() -> None:
    """A tie does not start another process."""
    assert best_modes({FLOAT: {"1": 20.0}, BFLOAT: {"1": 20.0}}) == {"1": FLOAT}


def test_no_rates_no_choice() -> None:
    """When every mode failed there is nothing to choose."""
    assert best_modes({}) == {}


def test_a_dtype_far_behind_everywhere_is_not_compiled() -> None:
    """Less than half the rate at every task."""
    rates = {FLOAT: {"1": 20.0, "64": 300.0}, BFLOAT: {"1": 6.0, "64": 80.0}}
    assert worth_compiling(rates) == [FLOAT]


def test_a_dtype_near_the_best_at_one_task_is_compiled() -> None:
    """It may win there."""
    rates = {FLOAT: {"1": 20.0, "64": 300.0}, BFLOAT: {"1": 6.0, "64": 200.0}}
    assert worth_compiling(rates) == [FLOAT, BFLOAT]


def test_tasks_are_grouped_by_the_mode_that_wins_them() -> None:
    """Each winner is launched otherwise on its own tasks."""
    assert tasks_won({"1": FLOAT, "4": BFLOAT, "16": FLOAT}) == {FLOAT: ["1", "16"], BFLOAT: ["4"]}


def test_other_launches_keep_dtype_and_compiling() -> None:
    """Only the launch differs, and the one already tried is left out."""
    compiled = Mode(dtype="float32", compiled=True)
    assert other_launches([compiled], ("in-process", "engine process")) == [
        Mode(dtype="float32", compiled=True, launch="engine process")
    ]

"""Progress for people: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.cli.bar import Bar, Lines, time_left
from autotune.forecast import Forecast
from autotune.progress import Stage
from tests.unit.autotune.test_forecast import PLAN, Clock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "nearly done"),
        (3, "about 5 s left"),
        (41, "about 45 s left"),
        (60, "about 1 min left"),
        (61, "about 2 min left"),
        (3600, "about 60 min left"),
    ],
)
def test_time_left(seconds: float, text: str) -> None:
    """Rounded up, so that it is rather shorter than told."""
    assert time_left(seconds) == text


def test_lines() -> None:
    """A line per stage, notes at once, and within a stage one every half minute."""
    clock, stream = Clock(), io.StringIO()
    lines = Lines(Console(file=stream, markup=False), Forecast(clock), clock)
    lines.plan(PLAN)
    lines.begin("load")
    lines.note("drafter [x] skipped")
    clock.now += 10
    lines.begin("search")
    for _ in range(7):
        clock.now += 10
        lines.update(0.5, "ngram K=3")
    assert stream.getvalue().splitlines() == [
        "[  0 %, about 3 min left] load",
        "drafter [x] skipped",
        "[  6 %, about 3 min left] search",
        "[ 38 %, about 2 min left] search: ngram K=3",
        "[ 38 %, about 2 min left] search: ngram K=3",
    ]


def test_bar_on_a_terminal() -> None:
    """The bar shows stage, share, time left and what is at hand; notes stay above it."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None, markup=False)
    bar = Bar(console, Forecast(Clock()))
    with bar.display:
        bar.plan([Stage("search", 100.0)])
        bar.begin("search")
        bar.update(0.5, "small [a] K=3")
        bar.note("something to know")
        bar.display.refresh()
    text = stream.getvalue()
    for part in ("search", " 50 %", "nearly done", "small [a] K=3", "something to know"):
        assert part in text

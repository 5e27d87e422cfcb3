"""Steal time as the kernel tells it."""

from __future__ import annotations

import pytest

from tests.benchmarks.machine import CpuTicks, parse_ticks


def test_guest_time_is_not_counted_twice() -> None:
    """The ninth and tenth column are contained in the first two."""
    stat = "cpu  10 1 5 70 2 1 1 10 7 3\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert parse_ticks(stat) == CpuTicks(steal=10, total=100)


@pytest.mark.parametrize("stat", ["", "cpu  10 1 5 70", "intr 1 2 3 4 5 6 7 8 9", "\n"])
def test_a_kernel_without_steal_time_tells_nothing(stat: str) -> None:
    """Too few columns, or another line."""
    assert parse_ticks(stat) is None


def test_the_share_is_of_the_time_between() -> None:
    """What was before does not count."""
    before, after = CpuTicks(steal=50, total=1000), CpuTicks(steal=60, total=1200)
    assert before.share_stolen_until(after) == pytest.approx(0.05)


def test_no_time_no_share() -> None:
    """Two looks within one tick."""
    ticks = CpuTicks(steal=5, total=10)
    assert ticks.share_stolen_until(ticks) == 0.0

"""Schedules over all batch sizes."""

from __future__ import annotations

import pytest

from policies.schedule import build_schedule, k_for
from policies.types import CellStatus, OffMode, ScheduleCell
from tests.unit.policies.builders import cell


def test_cells_between_and_beyond_measured_sizes() -> None:
    """B14, B18: 1 -> 4, 8 -> 2, 32 -> off has every gap filled in and an explicit tail."""
    schedule = build_schedule([cell(32, 0), cell(1, 4), cell(8, 2)])
    assert [(c.bs_lo, c.bs_hi, c.num_speculative_tokens, c.measured_at) for c in schedule] == [
        (1, 1, 4, 1),
        (2, 7, 2, None),
        (8, 8, 2, 8),
        (9, 31, 0, None),
        (32, 32, 0, 32),
        (33, None, 0, None),
    ]


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(1, 4), (2, 2), (8, 2), (24, 0), (32, 0), (64, 0), (10**9, 0)]
)
def test_lookup(batch_size: int, expected: int) -> None:
    """B14: unmeasured sizes follow the documented rule, never the nearest larger K."""
    schedule = build_schedule([cell(1, 4), cell(8, 2), cell(32, 0)])
    assert k_for(schedule, batch_size) == expected


@pytest.mark.parametrize("batch_size", [0, -1])
def test_lookup_below_one_is_refused(batch_size: int) -> None:
    """B14: there is no batch of 0 or fewer."""
    with pytest.raises(ValueError, match=f"batch_size = {batch_size}: must be 1 or more"):
        k_for(build_schedule([cell(1, 4)]), batch_size)


def test_lookup_outside_a_damaged_schedule_is_refused() -> None:
    """A schedule with a hole is an error, not speculation off."""
    holed = [c for c in build_schedule([cell(4, 2)]) if c.bs_hi is not None]
    with pytest.raises(ValueError, match="no cell"):
        k_for(holed, 5)


def test_below_the_smallest_measured_size() -> None:
    """Sizes under the smallest measured one take its K, as unmeasured cells."""
    schedule = build_schedule([cell(4, 3), cell(5, 1)])
    assert schedule[0] == ScheduleCell(
        bs_lo=1,
        bs_hi=3,
        num_speculative_tokens=3,
        off_mode=None,
        measured_at=None,
        status=CellStatus.PROVISIONAL,
    )
    assert [(c.bs_lo, c.measured_at) for c in schedule] == [(1, None), (4, 4), (5, 5), (6, None)]


def test_status_is_kept_only_where_measured() -> None:
    """A measured size keeps its status; everything else is provisional."""
    schedule = build_schedule([cell(1, 2), cell(4, 2, status=CellStatus.PROVISIONAL), cell(8, 2)])
    validated = [c.measured_at for c in schedule if c.status is CellStatus.VALIDATED]
    assert validated == [1, 8]


def test_off_mode_follows_what_is_loaded() -> None:
    """K = 0 is hot while a drafter is loaded and a restart where none is."""
    loaded = build_schedule([cell(1, 2), cell(4, 0)])
    assert [c.off_mode for c in loaded] == [None, OffMode.K0, OffMode.K0, OffMode.K0]
    unloaded = build_schedule([cell(1, 0, drafter="off"), cell(4, 0, drafter="off")])
    assert {c.off_mode for c in unloaded} == {OffMode.UNLOAD}


def test_no_measured_size_is_off_everywhere() -> None:
    """Without any decision the schedule is one tail that never speculates."""
    (only,) = build_schedule([])
    assert (only.bs_lo, only.bs_hi, only.num_speculative_tokens) == (1, None, 0)
    assert only.off_mode is OffMode.UNLOAD


def test_two_drafters_are_refused() -> None:
    """One server cannot hold a different drafter per batch size."""
    with pytest.raises(ValueError, match="batch size 1 needs ngram loaded and 4 needs off"):
        build_schedule([cell(1, 2), cell(4, 0, drafter="off")])


def test_a_size_decided_twice_is_refused() -> None:
    """Two decisions for one size have no order to prefer one by."""
    with pytest.raises(ValueError, match="batch size 4 was decided twice"):
        build_schedule([cell(4, 2), cell(4, 1)])

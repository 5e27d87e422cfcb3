"""From decisions at measured batch sizes to K for every batch size.

The table has one cell for each measured size and one for each stretch between them, and ends
in a tail without an upper end. Neighbours with equal K are not merged: a cell that names the
size it was measured at says something that its neighbour cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from policies.types import CellDecision, CellStatus, OffMode, ScheduleCell

BETWEEN_SIZES = (
    "Between two measured batch sizes: the smaller K of the two. Below the smallest: its K. "
    "Above the largest: speculation off, because nothing was measured there."
)
"""The rule for batch sizes that were never measured."""


def build_schedule(cells: Sequence[CellDecision]) -> tuple[ScheduleCell, ...]:
    """Cover every batch size from 1 on, by the rule `BETWEEN_SIZES`.

    Args:
        cells: One decision per measured batch size, in any order. Without any, the schedule
            is off everywhere.

    Returns:
        Contiguous cells, ascending; the last one has no upper end. `measured_at` is set and
        the status is the decision's only where the cell is a measured size itself; every
        other cell is provisional.

    Raises:
        ValueError: A batch size occurs twice, or the cells need different drafters loaded:
            one server holds one drafter or none.
    """
    ordered = sorted(cells, key=lambda cell: cell.batch_size)
    for before, after in pairwise(ordered):
        if before.batch_size == after.batch_size:
            raise ValueError(f"batch size {after.batch_size} was decided twice")
        if before.chosen.drafter != after.chosen.drafter:
            raise ValueError(
                f"batch size {before.batch_size} needs {before.chosen.drafter} loaded and "
                f"{after.batch_size} needs {after.chosen.drafter}: one server holds one of them"
            )
    loaded = bool(ordered) and not ordered[0].chosen.is_off
    schedule: list[ScheduleCell] = []
    next_size, previous_tokens = 1, None
    for cell in ordered:
        tokens = cell.chosen.num_speculative_tokens
        if cell.batch_size > next_size:
            between = tokens if previous_tokens is None else min(previous_tokens, tokens)
            schedule.append(_unmeasured(next_size, cell.batch_size - 1, between, loaded))
        schedule.append(
            ScheduleCell(
                bs_lo=cell.batch_size,
                bs_hi=cell.batch_size,
                num_speculative_tokens=tokens,
                off_mode=_off_mode(tokens, loaded),
                measured_at=cell.batch_size,
                status=cell.status,
            )
        )
        next_size, previous_tokens = cell.batch_size + 1, tokens
    schedule.append(_unmeasured(next_size, None, 0, loaded))
    return tuple(schedule)


def k_for(schedule: Sequence[ScheduleCell], batch_size: int) -> int:
    """K for a batch size.

    Raises:
        ValueError: `batch_size` is below 1, or the schedule has no cell for it.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size}: must be 1 or more")
    for cell in schedule:
        if cell.bs_lo <= batch_size and (cell.bs_hi is None or batch_size <= cell.bs_hi):
            return cell.num_speculative_tokens
    raise ValueError(f"batch_size = {batch_size}: the schedule has no cell for it")


def _unmeasured(bs_lo: int, bs_hi: int | None, tokens: int, loaded: bool) -> ScheduleCell:
    return ScheduleCell(
        bs_lo=bs_lo,
        bs_hi=bs_hi,
        num_speculative_tokens=tokens,
        off_mode=_off_mode(tokens, loaded),
        measured_at=None,
        status=CellStatus.PROVISIONAL,
    )


def _off_mode(tokens: int, loaded: bool) -> OffMode | None:
    if tokens:
        return None
    return OffMode.K0 if loaded else OffMode.UNLOAD

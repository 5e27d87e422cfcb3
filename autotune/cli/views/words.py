"""Numbers, times and ranges as people read them."""

from __future__ import annotations

from datetime import timedelta

from autotune.document import Cell, Interval

NONE = "-"
"""Stands for a figure that does not exist."""

DEFAULT_WORKLOAD = (
    "workload: default. Tuned on the requests that come with spectuned, not on your traffic."
)
"""Warning beside everything that was tuned on the shipped requests."""


def rate(tokens_per_s: float | None) -> str:
    """Tokens per second with three or more digits."""
    if tokens_per_s is None:
        return NONE
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 1000 else f"{tokens_per_s:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number."""
    return NONE if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A fraction as a percentage."""
    return NONE if share is None else f"{100 * share:.1f} %"


def speed_up(measured: Interval | None) -> str:
    """A factor over speculation off with its interval, for example `1.52x (1.48 to 1.56)`."""
    if measured is None:
        return NONE
    low, high = 1 + measured.low, 1 + measured.high
    return f"{1 + measured.gain:.2f}x ({low:.2f} to {high:.2f})"


def span(cell: Cell) -> str:
    """The batch sizes of a cell, for example `5 to 15` or `17 and more`."""
    if cell.bs_hi is None:
        return f"{cell.bs_lo} and more"
    return f"{cell.bs_lo}" if cell.bs_lo == cell.bs_hi else f"{cell.bs_lo} to {cell.bs_hi}"


def length(time: timedelta) -> str:
    """A length of time in its largest fitting unit, without a sign, for example `3 hours`."""
    seconds = abs(time.total_seconds())
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def memory(num_bytes: int | None) -> str:
    """Bytes as GiB, or MiB where they are fewer."""
    if num_bytes is None:
        return NONE
    gib = num_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{num_bytes / (1 << 20):.0f} MiB"

"""The look that all tables share."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

_UNLIMITED = 10_000  # characters


def new_table(title: str) -> Table:
    """An empty table: no lines between columns, so that it fits a terminal and reads in a log."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def add_columns(table: Table, *headings: str, figures: bool = False) -> None:
    """Add columns.

    Args:
        table: Where to.
        headings: One per column; a line break splits a long one.
        figures: Whether the columns hold figures, which belong on the right.
    """
    for heading in headings:
        table.add_column(heading, justify="right" if figures else "left")


def print_table(console: Console, table: Table) -> None:
    """Print a table as wide as it is: in a pipe or a narrow window no figure may be lost."""
    width = console.width
    unlimited = console.options.update(max_width=_UNLIMITED)
    console.width = max(width, console.measure(table, options=unlimited).maximum)
    console.print(table)
    console.width = width

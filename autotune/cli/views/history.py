"""Published generations for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autotune.cli.views.tables import add_columns, new_table
from autotune.report.history import HistoryRow


def history_table(rows: Sequence[HistoryRow]) -> Table:
    """One row per generation, in the order given."""
    table = new_table("Published generations")
    add_columns(table, "generation", figures=True)
    add_columns(table, "published (UTC)", "loads", "K by batch size", "validated", "workload")
    add_columns(table, "run", "scope")
    for row in rows:
        table.add_row(
            str(row.generation),
            f"{row.created:%Y-%m-%d %H:%M}",
            row.drafter,
            ", ".join(f"{size}: {k}" for size, k in row.num_speculative_tokens.items()),
            f"{row.num_validated} of {len(row.num_speculative_tokens)}",
            row.workload,
            row.run_id,
            row.scope,
        )
    return table

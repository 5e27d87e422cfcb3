"""Two measurements side by side for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.tuning.remeasure import Comparison
from policies.estimate import gain


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print both columns, and how many agree."""
    print_table(console, comparison_table(comparisons))
    agreeing = sum(one.contains_zero for one in comparisons)
    console.print(f"{agreeing} of {len(comparisons)} intervals of the difference contain zero.")


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per arm and batch size."""
    table = new_table("The published measurement and the second one")
    add_columns(table, "batch\nsize", figures=True)
    add_columns(table, "arm", "status")
    for which in ("published", "second"):
        for what in ("off tokens/s", "on tokens/s", "speed-up"):
            add_columns(table, f"{which}\n{what}", figures=True)
    add_columns(table, "difference\n(interval)", "contains\nzero")
    for one in comparisons:
        figures = [
            text
            for estimate in (one.first, one.second)
            for text in (
                words.rate(estimate.baseline_tokens_per_s),
                words.rate(estimate.candidate_tokens_per_s),
                f"{1 + gain(estimate.log_gain):.2f}x",
            )
        ]
        low, high = gain(one.difference_low), gain(one.difference_high)
        table.add_row(
            str(one.batch_size),
            one.config.label(),
            one.status,
            *figures,
            f"{100 * low:+.1f} % to {100 * high:+.1f} %",
            "yes" if one.contains_zero else "NO",
        )
    return table

"""Acceptance for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.report.acceptance import DEFINITIONS, AcceptanceReport, AcceptanceRow


def print_acceptance(console: Console, report: AcceptanceReport) -> None:
    """Print one table and what its columns mean."""
    if not report.rows:
        console.print(f"Run {report.run_id} stored no acceptance figures.", soft_wrap=True)
        return
    print_table(console, acceptance_table(report.rows, report.axes, f"workload: {report.workload}"))
    print_definitions(console, report.axes)
    if report.workload == "default":
        console.print(words.DEFAULT_WORKLOAD, soft_wrap=True)


def print_definitions(console: Console, axes: Sequence[str]) -> None:
    """Print what the columns of the table mean."""
    for line in DEFINITIONS:
        if "position" in axes or not line.startswith("position"):
            console.print(line, soft_wrap=True)


def acceptance_table(rows: Sequence[AcceptanceRow], axes: Sequence[str], source: str) -> Table:
    """Groups as rows, counts and ratios as columns.

    Args:
        rows: At least one.
        axes: What they are told apart by.
        source: What they rest on, for the title.
    """
    arms = {row.config for row in rows}
    named = f"{next(iter(arms)).label()}, " if len(arms) == 1 else ""
    table = new_table(f"Acceptance ({named}{source})")
    add_columns(table, *(["drafter"] if len(arms) > 1 else []))
    add_columns(table, *(axis for axis in ("task", "temperature") if axis in axes))
    counts = ("requests", "output\ntokens", "rounds that\ndrafted", "accepted\nof drafted")
    add_columns(table, *counts, figures=True)
    positions = max(len(row.num_accepted_tokens_per_pos) for row in rows)
    shown = positions if "position" in axes else 0
    add_columns(table, *(f"pos {position}" for position in range(1, shown + 1)), figures=True)
    add_columns(table, "tokens\nper round\n(with bonus)", figures=True)
    for row in rows:
        labels = [row.config.label()] if len(arms) > 1 else []
        labels += [row.task or words.NONE] if "task" in axes else []
        labels += [words.number(row.temperature, 1)] if "temperature" in axes else []
        per_pos = [words.percent(share) for share in row.acceptance_per_pos]
        table.add_row(
            *labels,
            str(row.num_requests),
            str(row.num_output_tokens),
            words.percent(row.share_of_rounds_that_drafted),
            words.percent(row.draft_acceptance_rate),
            *(per_pos + [words.NONE] * shown)[:shown],
            words.number(row.tokens_per_round),
        )
    return table

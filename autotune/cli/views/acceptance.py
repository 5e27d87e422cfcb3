"""Acceptance for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.report.acceptance import DEFINITIONS, AcceptanceReport


def print_acceptance(console: Console, report: AcceptanceReport) -> None:
    """Print one table and what its columns mean."""
    if not report.rows:
        console.print(f"Run {report.run_id} stored no acceptance figures.", soft_wrap=True)
        return
    print_table(console, acceptance_table(report))
    for line in DEFINITIONS:
        if "position" in report.axes or not line.startswith("position"):
            console.print(line, soft_wrap=True)
    if report.workload == "default":
        console.print(words.DEFAULT_WORKLOAD, soft_wrap=True)


def acceptance_table(report: AcceptanceReport) -> Table:
    """Groups as rows, counts and ratios as columns; the report has at least one row."""
    rows, axes, workload = report.rows, report.axes, report.workload
    arms = {row.config for row in rows}
    named = f"{next(iter(arms)).label()}, " if len(arms) == 1 else ""
    table = new_table(f"Acceptance ({named}workload: {workload})")
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

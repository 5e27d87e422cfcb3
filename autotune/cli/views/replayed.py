"""A replay of logged answers for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.acceptance import acceptance_table, print_definitions
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.report.replayed import CONFIDENCE, ReplayedRow, ReplayReport

_ABOUT_RULES = (
    "ratio and block are two exact rules of accepting drafts that were drawn from a distribution; "
    "the second accepts no fewer."
)


def print_replay(console: Console, report: ReplayReport, rule: str) -> None:
    """Print tokens per round for every K, then acceptance at the largest.

    Args:
        console: Where to.
        report: What was found.
        rule: Whose acceptance is shown; one of the report's.
    """
    print_table(console, sizes_table(report))
    k = max(row.counts.config.num_speculative_tokens for row in report.sizes)
    title = f"{rule} rule, {report.source}"
    print_table(console, acceptance_table(report.of(rule, k), report.axes, title))
    print_definitions(console, report.axes)
    if len(report.rules) > 1:
        console.print(_ABOUT_RULES, soft_wrap=True)


def sizes_table(report: ReplayReport) -> Table:
    """One row per K; tokens per round by each rule, with their intervals."""
    table = new_table(
        f"Tokens per round ({report.drafter}, {report.num_answers} answers of {report.source})"
    )
    add_columns(table, "K", figures=True)
    interval = f"{100 * CONFIDENCE:g} % interval"
    add_columns(table, *(f"{rule} rule\n({interval})" for rule in report.rules))
    add_columns(table, "drafted\nper round", "rounds that\ndrafted", figures=True)
    add_columns(table, *(f"accepted of\ndrafted, {rule}" for rule in report.rules), figures=True)
    by_k: dict[int, list[ReplayedRow]] = {}
    for row in report.sizes:
        by_k.setdefault(row.counts.config.num_speculative_tokens, []).append(row)
    for k, rows in by_k.items():
        first = rows[0].counts
        table.add_row(
            str(k),
            *(_with_interval(row) for row in rows),
            words.number(first.draft_tokens_per_round),
            words.percent(first.share_of_rounds_that_drafted),
            *(words.percent(row.counts.draft_acceptance_rate) for row in rows),
        )
    return table


def _with_interval(row: ReplayedRow) -> str:
    """For example `1.84 (1.79 to 1.89)`."""
    mean = words.number(row.counts.tokens_per_round)
    if row.interval is None:
        return mean
    low, high = row.interval
    return f"{mean} ({low:.2f} to {high:.2f})"

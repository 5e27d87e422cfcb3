"""A trained drafter for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from autotune.cli.views.tables import add_columns, new_table

if TYPE_CHECKING:
    from engine.training.card import TrainingFacts


def acceptance_table(facts: TrainingFacts) -> Table:
    """Tokens per round on held-out answers: a row per task and temperature, a column per K."""
    sizes = sorted({row.num_speculative_tokens for row in facts.acceptance})
    table = new_table("Tokens per round on held-out answers (with bonus)")
    add_columns(table, "task")
    add_columns(table, "temperature", "answers", *(f"K = {k}" for k in sizes), figures=True)
    buckets: dict[tuple[str, float, int], list[str]] = {}
    for row in facts.acceptance:
        key = (row.task, row.temperature, row.num_answers)
        buckets.setdefault(key, []).append(f"{row.tokens_per_round:.2f}")
    for (task, temperature, num_answers), cells in buckets.items():
        table.add_row(task, f"{temperature:g}", str(num_answers), *cells)
    return table

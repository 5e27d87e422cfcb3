"""Models in the cache for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table
from engine.checkpoint.hub import CachedModel


def models_table(models: Sequence[CachedModel]) -> Table:
    """One row per model."""
    table = new_table("Models in the cache" if models else "No models in the cache")
    add_columns(table, "name")
    add_columns(table, "size", figures=True)
    add_columns(table, "fingerprint", "folder")
    for model in models:
        table.add_row(
            model.name,
            words.memory(model.size_bytes),
            model.fingerprint[:16] if model.fingerprint else "cannot be read",
            str(model.path),
        )
    return table

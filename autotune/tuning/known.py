"""Cells that every search measures: what is published now, and what rules of thumb advise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autotune.document import PublishedConfig
from autotune.tuning.belief import Cell
from policies.rules_of_thumb import rule_of_thumb
from policies.types import SpeculativeConfig
from store.records import ProposedBy


def known_cells(
    published: PublishedConfig | None, methods: Mapping[str, str], batch_sizes: Iterable[int]
) -> dict[Cell, ProposedBy]:
    """The cells, the incumbent's first; off needs no cell, every block measures it.

    Only where to look is taken from what was published, never its figures.

    Args:
        published: The newest document of the same scope.
        methods: How each drafter of the search drafts.
        batch_sizes: Of the search.
    """
    sizes = tuple(batch_sizes)
    cells: dict[Cell, ProposedBy] = {}
    for cell in published.evidence if published else ():
        if cell.num_speculative_tokens and cell.batch_size in sizes and cell.drafter in methods:
            arm = SpeculativeConfig(
                drafter=cell.drafter,
                num_speculative_tokens=cell.num_speculative_tokens,
                draft_temperature=cell.draft_temperature,
            )
            cells[cell.batch_size, arm] = "incumbent"
    for name, method in methods.items():
        for size in sizes:
            if k := rule_of_thumb(method, size):
                arm = SpeculativeConfig(drafter=name, num_speculative_tokens=k)
                cells.setdefault((size, arm), "rule")
    return cells

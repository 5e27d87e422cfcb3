"""Questions that a document answers by itself."""

from __future__ import annotations

from autotune.document import Cell, CellEvidenceModel, PublishedConfig
from policies.types import SpeculativeConfig


def cell_for(config: PublishedConfig, batch_size: int) -> Cell:
    """The cell of the schedule that holds a batch size.

    Raises:
        ValueError: `batch_size` is below 1, or the schedule does not cover it.
    """
    config.num_speculative_tokens(batch_size)  # The one place that refuses a size.
    return next(
        cell
        for cell in config.schedule
        if cell.bs_lo <= batch_size and (cell.bs_hi is None or batch_size <= cell.bs_hi)
    )


def arm_of_evidence(evidence: CellEvidenceModel) -> SpeculativeConfig:
    """The published arm of a measured batch size; an idle drafter is one arm at any temperature."""
    if not evidence.num_speculative_tokens:
        return SpeculativeConfig(drafter=evidence.drafter)
    return SpeculativeConfig(
        drafter=evidence.drafter,
        num_speculative_tokens=evidence.num_speculative_tokens,
        draft_temperature=evidence.draft_temperature,
    )

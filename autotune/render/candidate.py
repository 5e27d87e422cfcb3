"""What a renderer renders: an envelope, K per batch size within it, and figures of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.document import Cell, CellEvidenceModel, EnvelopeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One envelope that a server could be started with.

    Attributes:
        envelope: What would be in memory.
        schedule: K per batch size within it, contiguous from 1 to a tail.
        evidence: Measurements of this very envelope; empty when it was never measured.
    """

    envelope: EnvelopeModel
    schedule: tuple[Cell, ...]
    evidence: tuple[CellEvidenceModel, ...] = ()

    def __post_init__(self) -> None:
        own = (self.envelope.drafter, self.envelope.draft_temperature)
        for row in self.evidence:
            other = (row.drafter, row.draft_temperature)
            if row.num_speculative_tokens and other != own:
                raise ValueError(
                    f"evidence at batch size {row.batch_size}: measured with (drafter, "
                    f"draft_temperature) = {other}, but the envelope has {own}"
                )

    @property
    def is_measured(self) -> bool:
        """True when at least one batch size has a measured gain."""
        return any(row.measured is not None for row in self.evidence)

    def total_log_gain(self, max_batch_size: int) -> float:
        """Sum over batch sizes of log(rate / rate with unloaded off).

        A size without a figure adds nothing, so candidates measured at different sizes compare.
        """
        return sum(
            math.log1p(row.measured.gain)
            for row in self.evidence
            if row.measured is not None and row.batch_size <= max_batch_size
        )


OFF_CANDIDATE = Candidate(
    envelope=EnvelopeModel(drafter="off", method="none", max_num_speculative_tokens=0),
    schedule=(
        Cell(
            bs_lo=1,
            bs_hi=None,
            num_speculative_tokens=0,
            off_mode="unload",
            measured_at=None,
            status="provisional",
        ),
    ),
)
"""No drafter in memory: what every gain is measured against."""

"""The cost model of a proposal, fitted by relative error: a first draft, then further ones.

The first draft of a round also takes in what the round before emitted, so it has its own cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWork:
    """What a drafter has to do in a round.

    Attributes:
        rows: Sequences.
        num_drafts: Tokens drafted for each, at least 1.
    """

    rows: int
    num_drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A fitted model; seconds, none below 0.

    Attributes:
        first_s: First draft, whatever the rows.
        first_row_s: First draft, of each row.
        further_s: Each further draft, whatever the rows.
        further_row_s: Each further draft, of each row.
    """

    first_s: float
    first_row_s: float
    further_s: float
    further_row_s: float

    def seconds(self, work: DraftWork) -> float:
        """Predicted time in the drafter."""
        further = work.num_drafts - 1
        first = self.first_s + self.first_row_s * work.rows
        return first + further * (self.further_s + self.further_row_s * work.rows)


def fit_draft(works: Sequence[DraftWork], seconds: Sequence[float]) -> DraftModel:
    """Least squares over relative errors, without negative costs.

    Args:
        works: At least one.
        seconds: Measured, of each.
    """
    measured: NDArray[np.float64] = np.array(seconds, dtype=np.float64)
    amounts = np.array([_amounts(work) for work in works], dtype=np.float64)
    first, first_row, further, further_row = nnls(
        amounts / measured[:, np.newaxis], np.ones(len(works))
    )[0].tolist()
    return DraftModel(
        first_s=first, first_row_s=first_row, further_s=further, further_row_s=further_row
    )


def _amounts(work: DraftWork) -> tuple[int, int, int, int]:
    further = work.num_drafts - 1
    return 1, work.rows, further, further * work.rows

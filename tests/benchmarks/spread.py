"""Medians with their range, over interleaved blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the blocks.

    Attributes:
        median: Its median,
        low: its smallest
        high: and its largest value.
    """

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As a JSON value."""
        return {"median": self.median, "low": self.low, "high": self.high}

    def show(self, digits: int) -> str:
        """`median (low to high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of ours to theirs, block by block: the machine drifts, so only neighbours compare."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])

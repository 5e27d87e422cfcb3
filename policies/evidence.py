"""Look-ups over the evidence of one search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policies.types import OFF_DRAFTER, CellEvidence, Envelope, PairedEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTable:
    """The evidence of one search, each arm once, in an order that is always the same.

    Attributes:
        cells: Sorted by batch size, drafter, draft temperature and K.
    """

    cells: tuple[CellEvidence, ...]

    @classmethod
    def of(cls, evidence: Iterable[CellEvidence]) -> EvidenceTable:
        """Build a table from evidence in any order.

        Raises:
            ValueError: One arm occurs twice at one batch size.
        """
        cells = sorted(evidence, key=_order)
        for (batch_size, config), count in Counter((c.batch_size, c.config) for c in cells).items():
            if count > 1:
                raise ValueError(
                    f"{config.label()} at batch size {batch_size} occurs {count} times: "
                    "pool its blocks into one estimate"
                )
        return cls(cells=tuple(cells))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Every batch size in the evidence, ascending."""
        return tuple(sorted({cell.batch_size for cell in self.cells}))

    @property
    def speculating(self) -> tuple[CellEvidence, ...]:
        """The arms that draft."""
        return tuple(cell for cell in self.cells if cell.config.speculates)

    @property
    def has_estimate(self) -> bool:
        """True when at least one trial gave an estimate."""
        return any(cell.explored or cell.validated for cell in self.cells)

    def arms(self, batch_size: int, envelope: Envelope | None = None) -> tuple[CellEvidence, ...]:
        """The drafting arms at a batch size, only those that fit `envelope` if one is given."""
        return tuple(
            cell
            for cell in self.speculating
            if cell.batch_size == batch_size and (envelope is None or _fits(cell, envelope))
        )

    def idle(self, batch_size: int, drafter: str) -> PairedEstimate | None:
        """Gain (a loss, as a rule) of the loaded drafter at K = 0 over unloaded off.

        The arm was not picked for its result, so the search's own estimate is unbiased and
        serves where there is no second one. A draft temperature has no effect at K = 0; of
        several such arms the one with most blocks counts, then the slower one.
        """
        estimates = [
            estimate
            for cell in self.cells
            if cell.batch_size == batch_size
            and cell.config.drafter == drafter != OFF_DRAFTER
            and not cell.config.speculates
            and (estimate := cell.validated or cell.explored)
        ]
        return max(estimates, key=lambda e: (e.num_blocks, -e.log_gain), default=None)

    def weights(self, weights: Mapping[int, float] | None) -> dict[int, float]:
        """Weight of every batch size, adding up to 1; uniform if None, 0 for those not named.

        A batch size whose trials all failed belongs in the evidence too, without estimates.

        Raises:
            ValueError: A weight is negative or not finite, all are 0, or one belongs to a
                batch size that is not in the evidence.
        """
        sizes = self.batch_sizes
        if weights is None:
            return dict.fromkeys(sizes, 1 / max(len(sizes), 1))
        unknown = sorted(set(weights) - set(sizes))
        if unknown:
            raise ValueError(f"weights for batch sizes {unknown}: only {list(sizes)} were measured")
        for size, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"weight of batch size {size} = {weight}: must be 0 or more")
        total = sum(weights.values())
        if total <= 0:
            raise ValueError("the weights of all batch sizes are 0: at least one must be positive")
        return {size: weights.get(size, 0.0) / total for size in sizes}


def smallest_near_best(
    estimates: Mapping[CellEvidence, PairedEstimate], tie: float
) -> CellEvidence:
    """The arm with the smallest K among those whose rate is within `tie` of the best one's.

    The optimum in K is flat, and a smaller K costs less memory and a shorter tail.

    Args:
        estimates: The estimate to compare each arm by; at least one.
        tie: Share of the rate that counts as no difference.
    """
    best = max(estimate.log_gain for estimate in estimates.values())
    near = [a for a, estimate in estimates.items() if estimate.log_gain >= best - math.log1p(tie)]
    return min(near, key=lambda arm: (arm.config.num_speculative_tokens, _order(arm)))


def _fits(cell: CellEvidence, envelope: Envelope) -> bool:
    config = cell.config
    return (
        config.drafter == envelope.drafter
        and config.draft_temperature == envelope.draft_temperature
        and config.num_speculative_tokens <= envelope.max_num_speculative_tokens
    )


def _order(cell: CellEvidence) -> tuple[int, str, bool, float, int]:
    config = cell.config
    temperature = config.draft_temperature
    return (
        cell.batch_size,
        config.drafter,
        temperature is not None,
        temperature or 0.0,
        config.num_speculative_tokens,
    )

"""Fresh blocks for what would be published, until each question is settled or the budget is gone.

How many blocks a question needs depends on how clear its answer is, so the bounds are ones that
hold however long one goes on (`policies.betting`), and what is settled early leaves its blocks to
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log1p

from autotune.tuning.belief import Belief
from autotune.tuning.blocks import Arm, Ledger
from policies.betting import is_above, is_below
from policies.decide import FINALISTS
from policies.estimate import lower_bound
from policies.types import Margins

_AT_ONCE = 2  # blocks of an arm


class Purse:
    """Blocks that may still be spent."""

    def __init__(self, total: int, on_spend: Callable[[float, str], None]) -> None:
        """Fill it; `on_spend` is told the share that is spent and what on."""
        self._total = total
        self.left = total
        self._on_spend = on_spend

    def spend(self, count: int, cell: Arm) -> None:
        """Take some out."""
        self._on_spend(1 - self.left / self._total, f"{cell[1].label()} at batch {cell[0]}")
        self.left -= count

    @property
    def is_empty(self) -> bool:
        """Too little is left for anything."""
        return self.left < _AT_ONCE


class Validator:
    """Measures cells on fresh blocks against a bound."""

    def __init__(
        self, ledger: Ledger, belief: Belief, purse: Purse, margins: Margins, num_sizes: int
    ) -> None:
        """Prepare.

        Args:
            ledger: Takes the blocks.
            belief: Learns from them.
            purse: Pays.
            margins: Of the decision.
            num_sizes: Batch sizes of the search.
        """
        self._ledger = ledger
        self._belief = belief
        self._purse = purse
        self._hot = log1p(margins.hot)
        self._harm = log1p(-margins.harm)
        risk = 1 - margins.confidence
        self._level = risk / (FINALISTS * num_sizes)
        self._idle_level = risk / num_sizes

    def settle(self, cells: Iterable[Arm], most: int) -> None:
        """Measure cells in turn until each is settled or has had `most` blocks."""
        waiting = list(cells)
        while not self._purse.is_empty:
            waiting = [
                cell
                for cell in waiting
                if self._num_blocks(cell) < most
                and cell[1].drafter not in self._ledger.failed
                and not self._is_settled(cell)
            ]
            if not waiting:
                return
            self._measure(min(waiting, key=self._num_blocks))

    def passes(self, cell: Arm) -> bool:
        """The arm is shown to gain enough or, idle, to cost little enough; as `decide` sees it."""
        values = self._ledger.log_ratios(cell, "validate")
        bound, level = self._bound(cell)
        if not is_above(values, bound, level):  # quicker to compute, and needed for the rest
            return False
        estimate = self._ledger.estimate(cell, "validate")
        return estimate is not None and lower_bound(estimate, level) > bound

    def fails(self, cell: Arm) -> bool:
        """The opposite is shown."""
        bound, level = self._bound(cell)
        return is_below(self._ledger.log_ratios(cell, "validate"), bound, level)

    def _is_settled(self, cell: Arm) -> bool:
        return self.fails(cell) or self.passes(cell)

    def _bound(self, cell: Arm) -> tuple[float, float]:
        if cell[1].speculates:
            return self._hot, self._level
        return self._harm, self._idle_level

    def _measure(self, cell: Arm) -> None:
        self._purse.spend(_AT_ONCE, cell)
        before = self._num_blocks(cell)
        self._ledger.measure(cell, _AT_ONCE, stage="validate", proposed_by="validation")
        if cell[1].speculates:
            for value in self._ledger.log_ratios(cell, "validate")[before:]:
                self._belief.observe(cell, value)

    def _num_blocks(self, cell: Arm) -> int:
        return len(self._ledger.log_ratios(cell, "validate"))

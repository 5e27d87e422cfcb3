"""How good, and how wrong, a decision is in a world whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from policies.types import DEFAULT_MARGINS, Decision, Margins
from tests.simulator.world import World, kind_of

_EXACT = 1e-9  # gains this close to a margin lie on it, as families of exact gains intend


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Log rate given away.

    Attributes:
        within: By batch size, against the best K (0 included) of the drafter and draft
            temperature that the decision loads; 0 where it loads nothing.
        across: Weighted over batch sizes, against the best harmless table of all envelopes.
            Negative only for a table that is itself harmful or rests on a dying drafter.
    """

    within: Mapping[int, float]
    across: float

    @property
    def within_max(self) -> float:
        """The largest over batch sizes."""
        return max(self.within.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What a decision should not have published, by the truth.

    Attributes:
        false_cells: Batch sizes that speculate although the gain is not above the hot margin.
        false_restart: A drafter is loaded although the table's gain is not above the restart
            margin.
        harmful_cells: Batch sizes that speculate and lose more than the harm margin.
        harmful_idle: Batch sizes at K = 0 where the loaded drafter costs more than that.
        dead: The drafter that is loaded had died during the search.
    """

    false_cells: tuple[int, ...]
    false_restart: bool
    harmful_cells: tuple[int, ...]
    harmful_idle: tuple[int, ...]
    dead: bool

    @property
    def false_publish(self) -> bool:
        """True when something was published that should not have been."""
        return bool(self.false_cells) or self.false_restart

    @property
    def harmful(self) -> bool:
        """True when some batch size is slower than unloaded off by more than the harm margin."""
        return bool(self.harmful_cells or self.harmful_idle)


def true_gains(world: World, decision: Decision, at_s: float = 0.0) -> dict[int, float]:
    """True log gain of what a decision does at each batch size.

    Raises:
        ValueError: It does not decide exactly the world's batch sizes.
    """
    sizes = tuple(cell.batch_size for cell in decision.cells)
    if sizes != world.batch_sizes:
        raise ValueError(f"the decision covers batch sizes {sizes}, the world {world.batch_sizes}")
    return {
        cell.batch_size: world.log_gain(cell.chosen, cell.batch_size, at_s)
        for cell in decision.cells
    }


def regret_of(world: World, decision: Decision, at_s: float = 0.0) -> Regret:
    """Regret of a decision, by what is true at `at_s` device seconds."""
    gains = true_gains(world, decision, at_s)
    envelope = decision.envelope
    within = world.best_within(kind_of(envelope.drafter, envelope.draft_temperature), at_s)
    return Regret(
        within={size: within.log_gains[size] - gain for size, gain in gains.items()},
        across=world.optimum(at_s).total - world.weighted(gains),
    )


def faults_of(
    world: World,
    decision: Decision,
    at_s: float = 0.0,
    *,
    dead: frozenset[str] = frozenset(),
    margins: Margins = DEFAULT_MARGINS,
) -> Faults:
    """Faults of a decision, by what is true at `at_s` device seconds.

    Args:
        world: The truth.
        decision: What would be published.
        at_s: Device seconds since the search began.
        dead: Drafters that died during the search.
        margins: Margins that the decision was to keep.
    """
    gains = true_gains(world, decision, at_s)
    hot, restart = math.log1p(margins.hot), math.log1p(margins.restart)
    limit = math.log1p(-margins.harm)
    drafting = {c.batch_size for c in decision.cells if c.chosen.speculates}
    loaded = any(not cell.chosen.is_off for cell in decision.cells)
    harmful = [size for size, gain in gains.items() if gain < limit - _EXACT]
    return Faults(
        false_cells=tuple(size for size in sorted(drafting) if gains[size] <= hot + _EXACT),
        false_restart=loaded and world.weighted(gains) <= restart + _EXACT,
        harmful_cells=tuple(size for size in harmful if size in drafting),
        harmful_idle=tuple(size for size in harmful if size not in drafting),
        dead=decision.envelope.drafter in dead,
    )

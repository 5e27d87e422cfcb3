"""Run a search in a simulated scenario and judge what it would publish.

A search is any function of a bench and a predictor that returns a decision: it cannot tell them
from the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.types import DEFAULT_MARGINS, Decision, Margins
from tests.simulator.bench import SimulatedBench
from tests.simulator.prior import SimulatedPredictor
from tests.simulator.regret import Faults, Regret, faults_of, regret_of
from tests.simulator.scenario import Scenario

Search = Callable[[SimulatedBench, SimulatedPredictor], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a search.

    Attributes:
        decision: What it would publish.
        regret: Log rate given away, judged when the search ended.
        faults: What should not have been published.
        num_blocks: Blocks measured, disturbed ones and failures included.
        device_seconds: Simulated device time.
    """

    decision: Decision
    regret: Regret
    faults: Faults
    num_blocks: int
    device_seconds: float

    @property
    def published(self) -> bool:
        """True when a drafter is loaded."""
        return any(not cell.chosen.is_off for cell in self.decision.cells)


def run_search(
    scenario: Scenario,
    search: Search,
    *,
    window_s: float = 0.5,
    margins: Margins = DEFAULT_MARGINS,
) -> Outcome:
    """Run one search.

    Args:
        scenario: Where; the same scenario gives the same blocks for the same calls.
        search: Gets a fresh bench and the scenario's predictor.
        window_s: Seconds of one window; a block has four.
        margins: What the faults are judged by.
    """
    world = scenario.world
    bench = SimulatedBench(world, scenario.noise, scenario.seed, window_s)
    decision = search(bench, scenario.predictor)
    at_s = bench.device_seconds
    return Outcome(
        decision=decision,
        regret=regret_of(world, decision, at_s),
        faults=faults_of(world, decision, at_s, dead=frozenset(bench.dead), margins=margins),
        num_blocks=bench.num_blocks,
        device_seconds=at_s,
    )

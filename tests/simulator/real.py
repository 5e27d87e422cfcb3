"""The product's own search, run in a simulated world."""

from __future__ import annotations

from autotune.tuning.search import Budget, Search
from autotune.tuning.study import NoStudy
from policies.types import Decision
from tests.simulator.bench import SimulatedBench
from tests.simulator.prior import SimulatedPredictor
from tests.simulator.run import Search as SearchFunction
from tests.simulator.scenario import Scenario
from tests.support.scripted_search import ledger_without_store

DEFAULT = Budget(trials=40, explore_blocks=2, validate_blocks=40)
"""What `spectune tune` spends by default on four batch sizes."""
LARGE = Budget(trials=96, explore_blocks=2, validate_blocks=120)
"""About two and a half times as much."""


def real_search(scenario: Scenario, budget: Budget = DEFAULT) -> SearchFunction:
    """What `spectune tune` does after replay and step times, without Optuna's notes."""

    def search(bench: SimulatedBench, predictor: SimulatedPredictor) -> Decision:
        world = scenario.world
        ledger = ledger_without_store(bench, predictor.log_std_error)
        return Search(
            arms=world.arms,
            batch_sizes=world.batch_sizes,
            predictor=predictor,
            ledger=ledger,
            study=NoStudy(),
            budget=budget,
            seed=scenario.seed,
        ).run()[0]

    return search

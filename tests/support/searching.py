"""A whole search on scripted blocks, and a small landscape with a known best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.tuning.belief import Cell
from autotune.tuning.search import Budget, Search
from policies.types import DEFAULT_MARGINS, CellEvidence, Decision, Margins, SpeculativeConfig
from store.records import ProposedBy
from tests.support.scripted_search import (
    Gain,
    ScriptedBench,
    TablePredictor,
    arms_of,
    ledger_without_store,
    predictions,
)

SIZES = (1, 16)
ARMS = arms_of("a", "b", "c")
BUDGET = Budget(trials=24, explore_blocks=2, validate_blocks=60)
BLOCK_SD = 0.05
IDLE_SD = 0.005


@dataclass
class SpyStudy:
    """Remembers what it is told."""

    asked: list[Cell] = field(default_factory=list)
    told: list[tuple[Cell, int, float | None]] = field(default_factory=list)

    def ask(self, cell: Cell) -> int:
        """Numbers count up from 100."""
        self.asked.append(cell)
        return 99 + len(self.asked)

    def tell(self, cell: Cell, number: int, log_gain: float | None) -> None:
        """Keep it."""
        self.told.append((cell, number, log_gain))


@dataclass
class Searching:
    """A search and all that it was given.

    Attributes:
        gain: Log gain of an arm at a batch size; idle drafters too.
        error: Added to it by the predictor.
    """

    gain: Callable[[SpeculativeConfig, int], float]
    error: Callable[[SpeculativeConfig, int], float] = lambda config, size: 0.0
    block: Gain | None = None
    arms: Sequence[SpeculativeConfig] = ARMS
    sizes: tuple[int, ...] = SIZES
    budget: Budget = BUDGET
    known: Mapping[Cell, ProposedBy] = field(default_factory=dict)
    weights: Mapping[int, float] | None = None
    margins: Margins = DEFAULT_MARGINS
    lasts: Mapping[str, int] = field(default_factory=dict)
    noise_sd: float = BLOCK_SD
    seed: int = 0
    study: SpyStudy = field(default_factory=SpyStudy)
    trials_told: list[float] = field(default_factory=list)
    blocks_told: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = ScriptedBench(
            self.block or (lambda config, size, stage, index: self.gain(config, size)),
            noise_sd=self.noise_sd,
            idle_noise_sd=min(self.noise_sd, IDLE_SD),
            seed=self.seed,
        )
        self.bench.lasts = dict(self.lasts)
        self.ledger = ledger_without_store(self.bench)
        table = predictions(
            self.arms, self.sizes, lambda arm, size: self.gain(arm, size) + self.error(arm, size)
        )
        self.search = Search(
            arms=self.arms,
            batch_sizes=self.sizes,
            predictor=TablePredictor(table),
            ledger=self.ledger,
            study=self.study,
            budget=self.budget,
            seed=self.seed,
            known=self.known,
            weights=self.weights,
            margins=self.margins,
            on_trial=lambda share, text: self.trials_told.append(share),
            on_block=lambda share, text: self.blocks_told.append(share),
        )

    def run(self) -> tuple[Decision, list[CellEvidence]]:
        """Search."""
        return self.search.run()


def at_k(decision: Decision) -> dict[int, int]:
    """K by batch size."""
    return {cell.batch_size: cell.chosen.num_speculative_tokens for cell in decision.cells}


def landscape(arm: SpeculativeConfig, size: int) -> float:
    """Drafter b is the best, at K = 3 and at K = 1; c loses; nothing costs anything while idle."""
    if not arm.speculates:
        return 0.0
    top, best_k = {
        ("a", 1): (0.2, 2),
        ("a", 16): (0.1, 2),
        ("b", 1): (0.5, 3),
        ("b", 16): (0.3, 1),
    }.get((arm.drafter, size), (-0.2, 1))
    return top - 0.08 * abs(arm.num_speculative_tokens - best_k)

"""Fresh blocks: who gets them, when a question is settled, and what is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import pytest

from autotune.tuning.belief import Belief, Cell
from autotune.tuning.validate import Purse, Validator
from policies.decide import decide
from policies.types import DEFAULT_MARGINS, CellEvidence, Envelope, Margins, SpeculativeConfig
from tests.support.scripted_search import (
    ScriptedBench,
    arms_of,
    config,
    ledger_without_store,
    predictions,
)

SIZES = (1, 4, 16, 64)
ARMS = arms_of("a", "b")
A2, A3, B2 = config("a", 2), config("a", 3), config("b", 2)
IDLE = config("a", 0)
STAKES = (0.1, 0.3, 0.6, 0.95)


def num_wins_needed(level: float) -> int:
    """Blocks that decide at a level if every one is won outright."""
    return next(
        n for n in range(1, 99) if sum((1 + stake) ** n for stake in STAKES) / 4 >= 1 / level
    )


@dataclass
class Validation:
    """A validator over a scripted bench."""

    gain: Callable[[SpeculativeConfig, int], float]
    blocks: int = 400
    noise_sd: float = 0.0
    idle_noise_sd: float = 0.0
    request_std_error: float = 0.0
    margins: Margins = DEFAULT_MARGINS
    num_sizes: int = len(SIZES)
    seed: int = 0
    told: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = ScriptedBench(
            lambda config, size, stage, index: self.gain(config, size),
            noise_sd=self.noise_sd,
            idle_noise_sd=self.idle_noise_sd,
            seed=self.seed,
        )
        self.ledger = ledger_without_store(
            self.bench, lambda config: self.request_std_error if config.speculates else 0.0
        )
        self.belief = Belief(predictions(ARMS, SIZES, lambda arm, size: 0.1), 0)
        self.purse = Purse(self.blocks, lambda share, text: self.told.append((share, text)))
        self.validator = Validator(
            self.ledger, self.belief, self.purse, self.margins, self.num_sizes
        )

    def num_blocks(self, cell: Cell) -> int:
        """Fresh blocks of a cell."""
        return self.bench.by_cell("validate")[cell]


# ---------------------------------------------------------------- the purse


def test_a_purse_tells_what_it_is_spent_on() -> None:
    """The share that was gone before, and the arm."""
    told: list[tuple[float, str]] = []
    purse = Purse(8, lambda share, text: told.append((share, text)))

    purse.spend(2, (1, A2))
    purse.spend(4, (16, IDLE))

    assert told == [(0.0, "a K=2 at batch 1"), (0.25, "a K=0 at batch 16")]
    assert (purse.left, purse.is_empty) == (2, False)
    purse.spend(1, (1, A2))
    assert purse.is_empty


# ---------------------------------------------------------------- when it stops


@pytest.mark.parametrize(
    ("log_gain", "passes", "fails"), [(0.4, True, False), (-0.4, False, True)], ids=["up", "down"]
)
def test_a_clear_answer_takes_the_fewest_blocks(log_gain: float, passes: bool, fails: bool) -> None:
    """Every block is won outright: at 0.05 / (2 x 4) that takes ten, and two come at once."""
    validation = Validation(lambda config, size: log_gain)

    validation.validator.settle([(1, A2)], most=100)

    assert num_wins_needed(0.05 / 8) == 10
    assert validation.num_blocks((1, A2)) == 10
    assert validation.validator.passes((1, A2)) is passes
    assert validation.validator.fails((1, A2)) is fails
    assert validation.purse.left == 390


def test_fewer_batch_sizes_need_fewer_blocks() -> None:
    """The family is two arms for every batch size of the search."""
    validation = Validation(lambda config, size: 0.4, num_sizes=1)

    validation.validator.settle([(1, A2)], most=100)

    assert num_wins_needed(0.05 / 2) == 8
    assert validation.num_blocks((1, A2)) == 8


def test_an_open_question_ends_at_the_most() -> None:
    """A gain exactly at the margin is neither shown nor refuted."""
    validation = Validation(lambda config, size: math.log(1.01))

    validation.validator.settle([(1, A2)], most=24)

    assert validation.num_blocks((1, A2)) == 24
    assert not validation.validator.passes((1, A2))
    assert not validation.validator.fails((1, A2))


def test_an_empty_purse_ends_it() -> None:
    """In the middle of a question, and before the next one."""
    validation = Validation(lambda config, size: 0.4, blocks=9)

    validation.validator.settle([(1, A2)], most=100)

    assert validation.num_blocks((1, A2)) == 8
    assert validation.purse.left == 1
    assert validation.purse.is_empty
    validation.validator.settle([(4, A2)], most=100)
    assert validation.num_blocks((4, A2)) == 0


def test_going_on_takes_up_where_it_stopped() -> None:
    """More blocks for what is open; none for what is settled."""
    validation = Validation(lambda config, size: 0.4 if size == 1 else math.log(1.01))
    cells = [(1, A2), (4, A2)]

    validation.validator.settle(cells, most=12)
    validation.validator.settle(cells, most=20)

    assert [validation.num_blocks(cell) for cell in cells] == [10, 20]


def test_blocks_go_to_the_cell_with_the_fewest() -> None:
    """In turn while all are open; what is settled leaves its blocks to the rest."""
    validation = Validation(lambda config, size: {1: 0.4, 4: -0.4}.get(size, math.log(1.01)))
    cells = [(1, A2), (4, A3), (16, A2)]

    validation.validator.settle(cells, most=14)

    order = [size for size, _ in groupby(validation.bench.asked, key=lambda one: one[1])]
    assert order == [1, 4, 16] * 5  # and 16 goes on alone
    assert [validation.num_blocks(cell) for cell in cells] == [10, 10, 14]


def test_disturbed_blocks_are_paid_for() -> None:
    """On a machine that is never quiet the purse empties and nothing is settled."""
    validation = Validation(lambda config, size: 0.4, blocks=20)
    validation.bench.disturbed = lambda place: True

    validation.validator.settle([(1, A2)], most=100)

    assert validation.purse.is_empty
    assert not validation.validator.passes((1, A2))
    assert 20 <= len(validation.bench.asked) <= 40  # each may be repeated once


# ---------------------------------------------------------------- the two bounds


@pytest.mark.parametrize(
    ("gain", "passes", "fails"),
    [(0.0, True, False), (-0.03, False, True), (math.log(0.99), False, False)],
    ids=["free", "dear", "at the limit"],
)
def test_an_idle_drafter_must_cost_little(gain: float, passes: bool, fails: bool) -> None:
    """It passes when shown to lose less than 1 %, at 0.05 / 4: one drafter per batch size."""
    validation = Validation(lambda config, size: gain)

    validation.validator.settle([(16, IDLE)], most=30)

    assert validation.validator.passes((16, IDLE)) is passes
    assert validation.validator.fails((16, IDLE)) is fails


def test_a_gain_that_frees_an_idle_drafter_does_not_free_an_arm() -> None:
    """The same blocks at +0.5 %: harmless while idle, and not worth drafting."""
    validation = Validation(lambda config, size: 0.005)

    validation.validator.settle([(4, IDLE), (4, A2)], most=60)

    assert validation.validator.passes((4, IDLE))
    assert not validation.validator.passes((4, A2))


@pytest.mark.parametrize(("harm", "passes"), [(0.01, False), (0.05, True)])
def test_the_margins_are_those_of_the_decision(harm: float, passes: bool) -> None:
    """An operator who accepts 5 % gets an idle drafter that costs 3 %."""
    validation = Validation(lambda config, size: -0.03, margins=Margins(harm=harm))
    validation.validator.settle([(16, IDLE)], most=40)
    assert validation.validator.passes((16, IDLE)) is passes


def test_the_choice_of_requests_is_part_of_the_bound() -> None:
    """Blocks show 4 % without noise, but other requests may well move it by 2 %."""
    cells = [(1, A2)]
    exact = Validation(lambda config, size: 0.04)
    unsure = Validation(lambda config, size: 0.04, request_std_error=0.02)

    exact.validator.settle(cells, most=40)
    unsure.validator.settle(cells, most=40)

    assert exact.validator.passes((1, A2))
    assert not unsure.validator.passes((1, A2))
    assert unsure.num_blocks((1, A2)) == 40


@pytest.mark.parametrize("seed", range(12))
def test_it_sees_what_the_decision_will_see(seed: int) -> None:
    """An arm passes if and only if `decide` lets its batch size speculate on the same blocks."""
    gain = 0.05
    validation = Validation(
        lambda config, size: gain if config.speculates else 0.0,
        noise_sd=0.067,
        idle_noise_sd=0.0067,
        request_std_error=0.008,
        seed=seed,
    )
    arms = [(size, A2) for size in SIZES]
    idle = [(size, IDLE) for size in SIZES]
    validation.validator.settle(arms, most=40)
    validation.validator.settle(idle, most=40)
    evidence = [
        CellEvidence(
            batch_size=size,
            config=arm,
            validated=validation.ledger.estimate((size, arm), "validate"),
        )
        for size, arm in [*arms, *idle]
    ]
    margins = Margins(restart=0.0)

    decision = decide(
        evidence, Envelope(drafter="a", max_num_speculative_tokens=4), margins=margins
    )

    passed = {cell[0] for cell in arms if validation.validator.passes(cell)}
    assert all(validation.validator.passes(cell) for cell in idle)
    speculating = {cell.batch_size for cell in decision.cells if cell.chosen.speculates}
    assert speculating == passed


# ---------------------------------------------------------------- failures, and what is learnt


def test_a_drafter_that_failed_gets_no_more_blocks() -> None:
    """Neither its other arms nor, from then on, its other batch sizes; the rest goes on."""
    validation = Validation(lambda config, size: math.log(1.01))
    validation.bench.lasts = {"a": 5}
    cells = [(1, A2), (4, A3), (16, B2)]

    validation.validator.settle(cells, most=12)

    assert validation.ledger.failed == {"a"}
    assert validation.bench.num_of("a") == 6
    assert validation.num_blocks((16, B2)) == 12
    validation.validator.settle([(64, A2)], most=12)
    assert validation.num_blocks((64, A2)) == 0


def test_the_belief_learns_from_arms_that_draft() -> None:
    """Every undisturbed fresh block once; idle drafters are no part of it."""
    validation = Validation(lambda config, size: 0.02)
    validation.bench.disturbed = lambda place: place == 1

    validation.validator.settle([(1, A2), (4, A3), (16, IDLE)], most=6)

    assert validation.belief.num_blocks((1, A2)) == 6
    assert validation.belief.num_blocks((4, A3)) == 6
    assert validation.num_blocks((1, A2)) == 7
    assert validation.num_blocks((16, IDLE)) > 0
    assert validation.ledger.log_ratios((1, A2), "validate") == pytest.approx([0.02] * 6)
    assert validation.ledger.log_ratios((1, A2), "explore") == []


def test_spending_is_told() -> None:
    """Shares rise from 0 and stay below 1."""
    validation = Validation(lambda config, size: 0.4, blocks=20)

    validation.validator.settle([(1, A2), (4, A3)], most=100)

    shares = [share for share, _ in validation.told]
    assert shares == pytest.approx([i / 10 for i in range(10)])
    assert {text for _, text in validation.told} == {"a K=2 at batch 1", "a K=3 at batch 4"}

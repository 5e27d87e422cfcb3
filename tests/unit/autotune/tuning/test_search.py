"""The whole search on scripted blocks: what wins, what must not, and what it may cost."""

from __future__ import annotations

from collections import Counter
from math import exp, log, log1p

import pytest

from autotune.tuning.belief import Cell
from autotune.tuning.search import Budget
from policies.decide import NO_VALID_TRIAL
from policies.types import (
    OFF,
    OFF_DRAFTER,
    CellStatus,
    Envelope,
    Margins,
    SpeculativeConfig,
)
from store.records import ProposedBy
from tests.support.scripted_search import arms_of, config
from tests.support.searching import BUDGET, SIZES, Searching, at_k, landscape

# ---------------------------------------------------------------- what wins


@pytest.mark.parametrize("seed", range(5))
def test_the_best_arm_wins(seed: int) -> None:
    """Although the prior prefers a by far, b is loaded, with the right K at each batch size."""
    error = {"a": 0.2, "b": -0.2, "c": 0.0}
    searching = Searching(landscape, lambda arm, size: error[arm.drafter], seed=seed)

    decision, evidence = searching.run()

    assert decision.envelope == Envelope(drafter="b", max_num_speculative_tokens=3)
    assert at_k(decision) == {1: 3, 16: 1}
    assert {cell.status for cell in decision.cells} == {CellStatus.VALIDATED}
    shown = {(one.batch_size, one.config): one for one in evidence}
    for cell in decision.cells:
        validated = shown[cell.batch_size, cell.chosen].validated
        assert validated is not None
        assert validated.log_gain == pytest.approx(landscape(cell.chosen, cell.batch_size), abs=0.1)


def test_off_wins_where_nothing_gains() -> None:
    """The prior promised 10 % of every arm; no drafter is loaded."""
    searching = Searching(
        lambda arm, size: -0.05 if arm.speculates else 0.0, lambda arm, size: 0.15
    )

    decision, _ = searching.run()

    assert decision.envelope == Envelope()
    assert {cell.chosen for cell in decision.cells} == {OFF}


def test_k_may_be_0_at_a_batch_size() -> None:
    """B gains at batch 1 alone, and costs nothing while idle at 16."""

    def gain(arm: SpeculativeConfig, size: int) -> float:
        return landscape(arm, 1) if size == 1 or not arm.speculates else -0.3

    searching = Searching(gain)

    decision, evidence = searching.run()

    assert decision.envelope.drafter == "b"
    assert at_k(decision) == {1: 3, 16: 0}
    idle = next(one for one in evidence if not one.config.speculates and one.batch_size == 16)
    assert idle.config == config("b", 0)
    assert idle.validated is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_lucky_arm_does_not_win(seed: int) -> None:
    """C looks 50 % faster whenever it is explored; fresh blocks tell that it loses."""

    def block(arm: SpeculativeConfig, size: int, stage: str, index: int) -> float:
        luck = 0.7 if arm.drafter == "c" and stage == "explore" else 0.0
        return landscape(arm, size) + luck

    searching = Searching(landscape, lambda arm, size: 0.0, block=block, seed=seed)

    decision, _ = searching.run()

    assert decision.envelope.drafter != "c"
    assert searching.bench.by_cell("validate").total() <= 2 * BUDGET.validate_blocks


def test_one_lucky_block_changes_nothing() -> None:
    """The first block of every arm is 60 % too fast where no drafter gains."""
    searching = Searching(
        lambda arm, size: -0.03 if arm.speculates else 0.0,
        block=lambda arm, size, stage, index: (
            0.5 if index == 0 and arm.speculates else (-0.03 if arm.speculates else 0.0)
        ),
    )

    decision, _ = searching.run()

    assert decision.envelope == Envelope()


def test_weights_decide_between_drafters() -> None:
    """A is better at batch 1 and b at 16: the traffic decides which is loaded."""

    def gain(arm: SpeculativeConfig, size: int) -> float:
        home = {"a": 1, "b": 16}.get(arm.drafter)
        if not arm.speculates:
            return 0.0
        return 0.4 - 0.1 * abs(arm.num_speculative_tokens - 2) if home == size else 0.1

    for weights, drafter in (({1: 0.9, 16: 0.1}, "a"), ({1: 0.1, 16: 0.9}, "b")):
        decision, _ = Searching(gain, weights=weights).run()
        assert decision.envelope.drafter == drafter


# ---------------------------------------------------------------- what must not be published


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_dead_drafter_is_never_published(share: float) -> None:
    """B would win, but fails at its first block, its last one or in between: a comes instead.

    However often b was measured before, nothing of it is evidence.
    """
    alive = Searching(landscape)
    assert alive.run()[0].envelope.drafter == "b"
    lasts = round(share * (alive.bench.num_of("b") - 1))
    searching = Searching(landscape, lasts={"b": lasts})

    decision, evidence = searching.run()

    assert "b" in searching.ledger.failed
    assert decision.envelope.drafter == "a"
    assert all(one.config.drafter != "b" for one in evidence)
    assert searching.bench.num_of("b") == lasts + 1


def test_the_runner_up_comes_after_a_harmful_idle() -> None:
    """B gains more but costs 5 % while idle at batch 16, where nothing gains: a is loaded."""

    def gain(arm: SpeculativeConfig, size: int) -> float:
        if not arm.speculates:
            return -0.05 if arm.drafter == "b" else 0.0
        return landscape(arm, 1) if size == 1 else -0.3

    decision, evidence = Searching(gain).run()

    assert decision.envelope.drafter == "a"
    assert at_k(decision) == {1: 2, 16: 0}
    tried = {one.config.drafter for one in evidence if one.validated and not one.config.speculates}
    assert tried == {"a", "b"}


def test_where_all_idle_drafters_harm_off_is_decided() -> None:
    """Each is tried and refused."""

    def gain(arm: SpeculativeConfig, size: int) -> float:
        if not arm.speculates:
            return -0.05
        return landscape(arm, 1) if size == 1 else -0.3

    decision, evidence = Searching(gain).run()

    assert decision.envelope == Envelope()
    assert {one.config.drafter for one in evidence if not one.config.speculates} == {"a", "b"}
    assert decision.reason.startswith(
        "No drafter is loaded: at batch size 16, loaded and idle, b is 4.9 % slower"
    )


def test_an_idle_drafter_whose_cost_stays_open_is_not_loaded() -> None:
    """It costs 1 % while idle, exactly the limit, which no number of blocks can settle."""

    def gain(arm: SpeculativeConfig, size: int) -> float:
        if not arm.speculates:
            return log(0.99)
        return landscape(arm, 1) if size == 1 else -0.3

    decision, _ = Searching(gain, noise_sd=0.01).run()

    assert decision.envelope == Envelope()
    assert "loaded and idle, b is 1.0 % slower" in decision.reason
    assert "not shown to lose at most 1 %" in decision.reason
    assert decision.cells[0].status is CellStatus.PROVISIONAL
    assert decision.cells[0].best_candidate == config("b", 3)


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("explore_blocks", [2, 3, 5])
@pytest.mark.parametrize("validate_blocks", [2, 7, 20])
@pytest.mark.parametrize("lasts", [{}, {"b": 9}], ids=["all live", "b dies"])
def test_the_budget_is_never_exceeded(
    explore_blocks: int, validate_blocks: int, lasts: dict[str, int]
) -> None:
    """Trials before, fresh blocks and further trials after, all from what was granted."""
    budget = Budget(trials=5, explore_blocks=explore_blocks, validate_blocks=validate_blocks)
    searching = Searching(landscape, budget=budget, lasts=lasts)

    searching.run()

    assert len(searching.trials_told) <= 5
    assert len(searching.bench.asked) <= 5 * explore_blocks + 2 * validate_blocks
    assert all(0 <= share < 1 for share in searching.trials_told + searching.blocks_told)
    assert searching.trials_told == sorted(searching.trials_told)
    assert searching.blocks_told == sorted(searching.blocks_told)


def test_what_is_clear_ends_early() -> None:
    """Three drafters that lose a half, as predicted: one look at each batch size, and no more.

    No batch size is decided on predictions alone.
    """
    searching = Searching(lambda arm, size: -0.7 if arm.speculates else 0.0)

    decision, evidence = searching.run()

    assert decision.envelope == Envelope()
    assert sorted(size for size, _ in searching.study.asked) == list(SIZES)
    assert len(searching.bench.asked) == len(SIZES) * BUDGET.explore_blocks
    assert all(one.explored for one in evidence)
    assert decision.reason.startswith("No drafter is loaded")


@pytest.mark.parametrize("seed", range(3))
def test_a_prior_that_promises_nothing_is_not_believed(seed: int) -> None:
    """It thinks every arm half as fast as it is, as with a cost table that is wrong: b wins."""
    searching = Searching(landscape, lambda arm, size: -0.7, seed=seed)

    decision, _ = searching.run()

    assert decision.envelope.drafter == "b"
    assert at_k(decision)[1] == 3


def test_known_cells_are_measured_first() -> None:
    """What is published now, and rules of thumb, however bad they look; others are skipped."""
    known: dict[Cell, ProposedBy] = {
        (16, config("c", 4)): "incumbent",
        (1, config("a", 1)): "rule",
        (1, config("gone", 3)): "incumbent",
        (1, OFF): "incumbent",
        (2, config("a", 1)): "incumbent",  # a batch size of another search
    }
    searching = Searching(landscape, known=known)

    searching.run()

    assert searching.study.asked[:2] == list(known)[:2]
    assert all(arm.drafter in {"a", "b", "c"} for _, arm in searching.study.asked)


def test_known_cells_of_a_drafter_that_failed_are_skipped() -> None:
    """It is out after one failure, whoever asks for it."""
    known: dict[Cell, ProposedBy] = {(1, config("b", k)): "incumbent" for k in (1, 2, 3)}
    searching = Searching(landscape, known=known, lasts={"b": 0})

    searching.run()

    assert searching.study.asked.count((1, config("b", 1))) == 1
    assert sum(arm.drafter == "b" for _, arm in searching.study.asked) == 1


def test_every_trial_is_noted_with_its_result() -> None:
    """Numbers are the study's; the result is the pooled gain, or nothing after a failure."""
    searching = Searching(landscape, lasts={"b": 3})

    searching.run()

    assert [cell for cell, *_ in searching.study.told] == searching.study.asked
    assert [number for _, number, _ in searching.study.told] == list(
        range(100, 100 + len(searching.study.asked))
    )
    failed = [cell for cell, _, log_gain in searching.study.told if log_gain is None]
    assert {arm.drafter for _, arm in failed} <= {"b"}
    for cell, _, log_gain in searching.study.told:
        if log_gain is not None:
            assert log_gain == pytest.approx(landscape(cell[1], cell[0]), abs=0.2)


def test_a_small_space_is_exhausted() -> None:
    """D8: 6 arms and 30 trials; repeats pool with what was measured before, and it ends early."""
    searching = Searching(
        lambda arm, size: 0.05 * arm.num_speculative_tokens if arm.speculates else 0.0,
        arms=arms_of("a", largest=6),
        sizes=(1,),
        budget=Budget(trials=30, explore_blocks=2, validate_blocks=20),
        noise_sd=0.001,
    )

    decision, _ = searching.run()

    asked = Counter(searching.study.asked)
    assert set(asked) <= {(1, arm) for arm in searching.arms}
    assert asked.total() < 30
    blocks = searching.bench.by_cell("explore")
    assert blocks == Counter({cell: 2 * times for cell, times in asked.items()})
    assert at_k(decision)[1] == 6


def test_one_seed_one_search() -> None:
    """D10: same blocks, cells, order and decision; another seed, another order."""
    first, again, other = (Searching(landscape, seed=seed) for seed in (3, 3, 4))

    assert first.run() == again.run()
    other.run()

    assert first.bench.asked == again.bench.asked != other.bench.asked


# ---------------------------------------------------------------- the edges


def test_without_arms_there_is_nothing_to_search() -> None:
    """Every drafter was skipped: off, and nothing to rest on."""
    searching = Searching(landscape, arms=())

    decision, evidence = searching.run()

    assert (decision.reason, evidence) == (NO_VALID_TRIAL, [])
    assert searching.bench.asked == []


def test_when_all_trials_fail_there_is_no_valid_trial() -> None:
    """D7: every batch size is in the decision, off and provisional."""
    searching = Searching(landscape, lasts={"a": 0, "b": 0, "c": 0}, error=lambda arm, size: 0.5)

    decision, evidence = searching.run()

    assert decision.reason == NO_VALID_TRIAL
    assert at_k(decision) == {1: 0, 16: 0}
    assert {cell.status for cell in decision.cells} == {CellStatus.PROVISIONAL}
    assert {one.batch_size for one in evidence} == set(SIZES)
    assert not any(one.explored or one.validated for one in evidence)
    assert len(searching.bench.asked) == 3  # one block each, and no drafter a second time


def test_a_batch_size_that_was_never_measured_is_in_the_evidence() -> None:
    """With one trial and two batch sizes, every size still gets a decision."""
    budget = Budget(trials=1, explore_blocks=2, validate_blocks=2)

    decision, evidence = Searching(landscape, budget=budget).run()

    assert {one.batch_size for one in evidence} == set(SIZES)
    assert [cell.batch_size for cell in decision.cells] == list(SIZES)


def test_the_candidate_decides() -> None:
    """Of two K that passed, the one that was settled on is published, not the smaller one.

    K = 4 is 0.9 % better than K = 3: a tie for `decide`, which would take the smaller K.
    """

    def gain(arm: SpeculativeConfig, size: int) -> float:
        if not arm.speculates:
            return 0.0
        return 0.3 + {3: 0.0, 4: 0.009}.get(arm.num_speculative_tokens, -0.3)

    arms = arms_of("a")
    searching = Searching(gain, arms=arms, sizes=(1,), noise_sd=0.002)

    decision, evidence = searching.run()

    assert at_k(decision) in ({1: 3}, {1: 4})
    (chosen,) = (cell.chosen for cell in decision.cells)
    validated = {one.config for one in evidence if one.validated}
    assert chosen in validated
    assert chosen == searching.search._explorer.arm(("a", None), 1) or len(validated) == 2


def test_explored_blocks_alone_decide_nothing() -> None:
    """With fresh blocks for nothing but a first look nothing can be shown."""
    budget = Budget(trials=24, explore_blocks=2, validate_blocks=4)

    decision, _ = Searching(landscape, budget=budget, noise_sd=0.0).run()

    assert decision.envelope == Envelope()
    assert {cell.status for cell in decision.cells} == {CellStatus.PROVISIONAL}


def test_predictions_come_with_the_evidence() -> None:
    """Of every arm that was measured, as rates."""
    searching = Searching(landscape, lambda arm, size: 0.03)

    _, evidence = searching.run()

    for one in evidence:
        gain = landscape(one.config, one.batch_size) + 0.03 if one.config.speculates else 0.0
        assert one.predicted_tokens_per_s == pytest.approx(100_000 * exp(gain))


def test_the_margin_of_the_decision_is_that_of_the_validation() -> None:
    """A hot margin of 40 % leaves batch 16 off, whose best gains 35 %."""
    margins = Margins(hot=0.4)

    decision, _ = Searching(landscape, margins=margins).run()

    assert at_k(decision) == {1: 3, 16: 0}
    assert landscape(config("b", 1), 16) < log1p(0.4)
    assert decision.envelope.drafter != OFF_DRAFTER

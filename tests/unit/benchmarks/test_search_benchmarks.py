"""What searches are judged by: the grid's file, its errors, and what a table gives away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from autotune.tuning.belief import Cell
from policies.types import OFF, Block, SpeculativeConfig
from tests.benchmarks.bench_grid import _passes
from tests.benchmarks.search_grid import Grid, GridBlock, Prediction
from tests.benchmarks.search_model import block_sd, latency_errors, replay_errors
from tests.benchmarks.search_truth import Table, Truth, best_table, contenders, grid_gains, kinds
from tests.support.scripted_search import config

A, B, IDLE = config("a", 3), config("b", 1, 0.7), config("a", 0)
ROUNDS = 100


def grid_block(
    cell: Cell, gain: float, *, tau: float = 1.5, luck: float = 1.0, number: int = 0
) -> GridBlock:
    """A block whose rounds are as fast as the gain says, whatever they happened to accept."""
    size, arm = cell
    expected = ROUNDS * tau if arm.speculates else None
    emitted = round(ROUNDS * (tau if arm.speculates else 1.0) * luck)
    return GridBlock(
        pass_number=number,
        batch_size=size,
        drafter=arm.drafter,
        num_speculative_tokens=arm.num_speculative_tokens,
        draft_temperature=arm.draft_temperature,
        baseline_tokens=100,
        baseline_s=1.0,
        candidate_tokens=emitted,
        candidate_s=(expected or emitted) / (100 * math.exp(gain)),
        expected_tokens=expected,
        num_rounds=ROUNDS,
        wall_s=2.5,
        disturbed=False,
    )


def prediction(cell: Cell, gain: float, tau: float = 1.5) -> Prediction:
    """What the prior says."""
    size, arm = cell
    return Prediction(
        batch_size=size,
        drafter=arm.drafter,
        num_speculative_tokens=arm.num_speculative_tokens,
        draft_temperature=arm.draft_temperature,
        tokens_per_s=100 * math.exp(gain),
        off_tokens_per_s=100.0,
        request_std_error=0.0,
        tokens_per_round=tau,
    )


def grid(
    gains: Mapping[Cell, float], predicted: Mapping[Cell, float] | None = None, luck: float = 1.0
) -> Grid:
    """Two passes over some cells, off their gain by 1 % up and down."""
    return Grid(
        conditions={},
        predictions=[
            prediction(cell, (predicted or gains)[cell]) for cell in gains if cell[1].speculates
        ],
        blocks=[
            grid_block(cell, gain + (0.01 if number else -0.01), luck=luck, number=number)
            for number in (0, 1)
            for cell, gain in gains.items()
        ],
    )


GAINS: dict[Cell, float] = {
    (1, A): 0.3,
    (1, B): 0.2,
    (1, IDLE): 0.0,
    (4, A): -0.1,
    (4, B): 0.1,
    (4, IDLE): -0.002,
}


def test_the_file_holds_everything() -> None:
    """Written and read again, to seven digits."""
    before = grid(GAINS)
    after = Grid.from_json(before.to_json())
    assert [block.cell for block in after.blocks] == [block.cell for block in before.blocks]
    assert after.num_target_tokens == before.num_target_tokens
    assert after.device_seconds == pytest.approx(12 * 2.5)
    assert grid_gains(after) == pytest.approx(GAINS, abs=1e-6)
    assert [one.cell for one in after.predictions] == [one.cell for one in before.predictions]


def test_disturbed_blocks_say_nothing() -> None:
    """They cost, and count for nothing else."""
    whole = grid(GAINS)
    wild = replace(grid_block((1, A), 3.0), disturbed=True)
    found = replace(whole, blocks=[*whole.blocks, wild])
    assert grid_gains(found) == pytest.approx(GAINS)
    assert found.device_seconds == pytest.approx(13 * 2.5)


def test_an_unfinished_pass_is_finished_first() -> None:
    """Only the cells it lacks; then whole passes in other orders."""
    cells = list(GAINS)
    (first,) = _passes([], cells, 1)
    assert (first[0], sorted(map(str, first[1]))) == (0, sorted(map(str, cells)))
    done = [grid_block(cell, 0.0) for cell in cells[:4]]
    rest, whole = _passes(done, cells, 2)
    assert (rest[0], set(rest[1])) == (0, set(cells[4:]))
    assert (whole[0], len(whole[1])) == (1, len(cells))
    assert _passes([grid_block(cell, 0.0) for cell in cells], cells, 1)[0][0] == 1


def test_replay_errors_by_hand() -> None:
    """Every block emitted 10 % more than replay expects."""
    for one in replay_errors(grid(GAINS, luck=1.1)):
        assert one.error == pytest.approx(math.log(1.1))
        assert one.num_rounds == 4 * ROUNDS


def test_latency_errors_are_those_of_times_on_untimed_k() -> None:
    """K = 3 was not timed and is predicted 5 % too fast; K = 1 was timed and does not count."""
    predicted = {cell: gain + math.log(1.05) for cell, gain in GAINS.items()}
    assert latency_errors(grid(GAINS, predicted)) == pytest.approx([1 - 1 / 1.05] * 2)
    lucky = grid(GAINS, predicted, luck=1.2)
    assert latency_errors(lucky) == pytest.approx([1 - 1 / 1.05] * 2)


def test_noise_of_a_block_by_hand() -> None:
    """Pairs that lie 0.02 apart have a standard deviation of 0.02 / sqrt 2."""
    assert block_sd(grid(GAINS), 1) == pytest.approx(0.02 / math.sqrt(2))
    assert block_sd(grid(GAINS), 64) is None


def truth(gains: Mapping[Cell, float], noise: Sequence[float] = (-0.001, 0.0, 0.001)) -> Truth:
    """Turns of all cells, whose noise is shared by a turn."""

    def block(gain: float) -> Block:
        return Block(
            baseline_tokens=100.0,
            baseline_s=1.0,
            candidate_tokens=100.0 * math.exp(gain),
            candidate_s=1.0,
        )

    return Truth({cell: [block(gain + one) for one in noise] for cell, gain in gains.items()})


BEST = Table(("a", None), {1: A, 4: IDLE})


def test_the_best_table_gives_nothing_away() -> None:
    """Within what is loaded, and across: a gains 0.3 - 0.002 in sum, b 0.2 + 0.1."""
    found = truth(GAINS)
    assert {size: loss.share for size, loss in found.within(BEST).items()} == {1: 0.0, 4: 0.0}
    best = Table(("b", 0.7), {1: B, 4: B})
    assert found.across(best).share == 0.0
    assert found.across(BEST).log_loss == pytest.approx((0.2 + 0.1 - 0.3 + 0.002) / 2)


def test_what_a_worse_arm_gives_away() -> None:
    """Its distance to the best of the envelope; noise that a turn shares cancels."""
    found = truth(GAINS).within(Table(("a", None), {1: IDLE, 4: A}))
    assert found[1].log_loss == pytest.approx(0.3)
    assert found[1].low == pytest.approx(0.3)
    assert found[4].log_loss == pytest.approx(0.098)
    assert found[4].share == pytest.approx(1 - math.exp(-0.098))


def test_off_gives_away_what_the_best_harmless_table_gains() -> None:
    """Nothing within, since nothing is loaded; across, all of it."""
    off = Table(None, {1: OFF, 4: OFF})
    found = truth(GAINS)
    assert {loss.share for loss in found.within(off).values()} == {0.0}
    assert found.across(off).log_loss == pytest.approx(0.15)
    assert 0.14 < found.across(off).low < 0.15


def test_a_table_that_harms_is_no_best() -> None:
    """A loses 5 % idle at batch 4 now, so only b is left to compare with, and then off."""
    harmful = GAINS | {(4, IDLE): -0.05, (1, A): 1.0}
    off = Table(None, {1: OFF, 4: OFF})
    assert truth(harmful).across(off).log_loss == pytest.approx(0.15)
    assert kinds(harmful) == [("b", 0.7), ("a", None)]
    assert truth(harmful | {(4, B): -0.05}).across(off).log_loss == 0.0


def test_contenders_hold_the_best_of_every_kind_and_what_was_decided() -> None:
    """Off is the baseline of all and needs no block."""
    found = contenders(GAINS, Table(None, {1: OFF, 4: OFF}))
    assert found == {1: [A, B, IDLE], 4: [B, IDLE, A]}
    assert best_table(GAINS, ("a", None)) == {1: A, 4: IDLE}
    decided: dict[int, SpeculativeConfig] = {1: config("a", 7), 4: IDLE}
    assert config("a", 7) in contenders(GAINS, Table(("a", None), decided))[1]

"""The ledger of a run: what is stored, what counts, and what happens to failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import hypot, log
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch

from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.blocks import Ledger
from autotune.tuning.paired_block import PairedBlock, Tally
from engine.errors import NumericError
from engine.profile import StartProfile
from policies.estimate import paired_estimate
from policies.types import Block, PairedEstimate, SpeculativeConfig
from store.records import Stage
from store.repository import Store
from tests.contract.store_samples import make_run

ARM = (4, SpeculativeConfig(drafter="draft", num_speculative_tokens=2, draft_temperature=0.7))
IDLE = (4, SpeculativeConfig(drafter="draft"))
REPLAYED = AcceptanceProfile(
    {
        ("draft", 0.7): [
            StartProfile(torch.full((n, 2), 0.5, dtype=torch.float64), torch.full((n,), 2))
            for n in (3, 9, 20)
        ]
    },
    {"draft": {}},
)


def block(index: int, *, disturbed: bool = False) -> PairedBlock:
    """A block whose figures tell its number."""
    return PairedBlock(
        Tally(num_tokens=100 + index, seconds=1.0 + 0.01 * index),
        Tally(
            num_tokens=150 - index,
            seconds=1.1,
            num_drafts=60,
            num_draft_tokens=120,
            num_accepted_tokens=70,
        ),
        disturbed,
    )


class FakeBench:
    """Gives the blocks that a function makes of their numbers."""

    def __init__(self, make: Callable[[int], PairedBlock]) -> None:
        self._make = make
        self.asked: list[tuple[SpeculativeConfig, int, str, int]] = []

    def measure(
        self, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> PairedBlock:
        """The block of that number."""
        self.asked.append((config, batch_size, stage, index))
        return self._make(index)


class Bookkeeping:
    """A ledger, its store and its fake bench."""

    def __init__(self, store: Store, make: Callable[[int], PairedBlock]) -> None:
        run = make_run()
        store.begin_run(run)
        self.store, self.run_id, self.bench = store, run.run_id, FakeBench(make)
        self.ledger = Ledger(store, run.run_id, self.bench, REPLAYED.log_std_error)

    def measure(self, num_blocks: int, arm: Any = ARM, **changes: Any) -> bool:
        """Measure for the search unless told otherwise."""
        values: dict[str, Any] = {"stage": "explore", "proposed_by": "sampler"} | changes
        return self.ledger.measure(arm, num_blocks, **values)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.open(tmp_path / "spectuned.db") as opened:
        yield opened


def blocks(*indices: int) -> list[Block]:
    """The decisive part of blocks."""
    return [block(index).block() for index in indices]


def log_ratios(*indices: int) -> list[float]:
    """Log of candidate rate over baseline rate of blocks."""
    return [log((150 - i) / 1.1) - log((100 + i) / (1.0 + 0.01 * i)) for i in indices]


def explored(*indices: int) -> PairedEstimate:
    """What the search knows from blocks: no bound that holds at any time."""
    found = paired_estimate(blocks(*indices), REPLAYED.log_std_error(ARM[1]))
    return replace(found, log_ratios=())


def test_every_block_is_stored_with_its_circumstances(store: Store) -> None:
    """Arm, stage, proposer, trial, number and all counts."""
    books = Bookkeeping(store, block)
    seen: list[int] = []

    assert books.measure(3, trial_number=5, on_block=lambda: seen.append(len(seen)))

    rows = store.measurements(books.run_id)
    assert [row.block_index for row in rows] == [0, 1, 2] == seen
    assert {
        (
            row.batch_size,
            row.drafter,
            row.num_speculative_tokens,
            row.draft_temperature,
            row.stage,
            row.trial_number,
            row.proposed_by,
            row.num_drafts,
            row.num_draft_tokens,
            row.num_accepted_tokens,
            row.disturbed,
        )
        for row in rows
    } == {(4, "draft", 2, 0.7, "explore", 5, "sampler", 60, 120, 70, False)}
    assert [
        (row.baseline_tokens, row.baseline_s, row.candidate_tokens, row.candidate_s) for row in rows
    ] == [(100 + i, 1.0 + 0.01 * i, 150 - i, 1.1) for i in range(3)]


def test_a_repeated_arm_pools_its_blocks(store: Store) -> None:
    """D8: more blocks of the same arm, never the same block twice."""
    books = Bookkeeping(store, block)

    books.measure(2)
    books.measure(3)

    assert [index for *_, index in books.bench.asked] == [0, 1, 2, 3, 4]
    estimate = books.ledger.estimate(ARM, "explore")
    assert estimate is not None
    assert estimate.num_blocks == 5
    assert estimate == explored(0, 1, 2, 3, 4)


def test_stages_do_not_mix(store: Store) -> None:
    """Fresh blocks count from 0 again and estimate on their own."""
    books = Bookkeeping(store, block)

    books.measure(3)
    books.measure(2, stage="validate", proposed_by="validation")

    assert [(stage, index) for _, _, stage, index in books.bench.asked] == [
        ("explore", 0),
        ("explore", 1),
        ("explore", 2),
        ("validate", 0),
        ("validate", 1),
    ]
    assert books.ledger.arms("explore") == books.ledger.arms("validate") == [ARM]
    validated = books.ledger.estimate(ARM, "validate")
    assert validated is not None
    assert validated.num_blocks == 2
    assert books.ledger.log_ratios(ARM, "validate") == pytest.approx(log_ratios(0, 1))


def test_fresh_blocks_alone_carry_bounds_that_hold_at_any_time(store: Store) -> None:
    """What was explored was picked by its results, so its blocks are not handed on."""
    books = Bookkeeping(store, block)
    books.measure(3)
    books.measure(3, stage="validate", proposed_by="validation")
    books.measure(3, stage="remeasure", proposed_by="validation")

    assert books.ledger.estimate(ARM, "explore") == explored(0, 1, 2)
    stages: tuple[Stage, ...] = ("validate", "remeasure")
    for stage in stages:
        estimate = books.ledger.estimate(ARM, stage)
        assert estimate is not None
        assert estimate == paired_estimate(blocks(0, 1, 2), REPLAYED.log_std_error(ARM[1]))
        assert estimate.log_ratios == pytest.approx(log_ratios(0, 1, 2))


def test_the_requests_part_joins_in_quadrature(store: Store) -> None:
    """Block noise and the jackknife over requests, both visible in the estimate."""
    books = Bookkeeping(store, block)
    books.measure(4)

    estimate = books.ledger.estimate(ARM, "explore")

    noise = paired_estimate(blocks(0, 1, 2, 3)).std_error
    assert estimate is not None
    assert estimate.request_std_error == REPLAYED.log_std_error(ARM[1]) > 0
    assert estimate.std_error == pytest.approx(hypot(noise, estimate.request_std_error))


def test_an_idle_arm_has_no_requests_part(store: Store) -> None:
    """K = 0 accepts nothing, so the choice of requests does not matter."""
    books = Bookkeeping(store, block)
    books.measure(2, IDLE)

    estimate = books.ledger.estimate(IDLE, "explore")

    assert estimate is not None
    assert estimate.request_std_error == 0.0


def test_disturbed_blocks_are_kept_but_decide_nothing(store: Store) -> None:
    """They are stored as such, measured again, and left out of the estimate."""
    books = Bookkeeping(store, lambda index: block(index, disturbed=index in (1, 2)))

    assert books.measure(4)

    assert [row.disturbed for row in store.measurements(books.run_id)] == (
        [False, True, True, False, False, False]
    )
    assert books.ledger.estimate(ARM, "explore") == explored(0, 3, 4, 5)
    assert books.ledger.log_ratios(ARM, "explore") == log_ratios(0, 3, 4, 5)
    assert books.ledger.num_disturbed == 2


def test_retries_are_limited(store: Store) -> None:
    """On a machine that is never quiet: at most as many again, and no estimate."""
    books = Bookkeeping(store, lambda index: block(index, disturbed=True))

    assert books.measure(6)

    assert 6 < len(store.measurements(books.run_id)) <= 12
    assert books.ledger.estimate(ARM, "explore") is None
    assert books.ledger.arms("explore") == []


def test_one_block_is_no_estimate(store: Store) -> None:
    """A single block says nothing about its spread."""
    books = Bookkeeping(store, block)

    books.measure(1)

    assert books.ledger.estimate(ARM, "explore") is None


def test_a_failure_is_recorded_and_ends_the_arm(store: Store) -> None:
    """What was measured before stays; the reason is stored."""

    def fails(index: int) -> PairedBlock:
        if index == 2:
            raise NumericError("logits hold NaN")
        return block(index)

    books = Bookkeeping(store, fails)

    assert books.measure(5) is False

    (failure,) = store.failures(books.run_id)
    assert (failure.batch_size, failure.drafter, failure.num_speculative_tokens) == (4, "draft", 2)
    assert (failure.draft_temperature, failure.reason) == (0.7, "logits hold NaN")
    assert len(store.measurements(books.run_id)) == 2
    assert books.ledger.failed == {"draft"}
    assert books.ledger.log_ratios(ARM, "explore") == pytest.approx(log_ratios(0, 1))


def test_nothing_has_failed_at_first(store: Store) -> None:
    """Neither before nor after blocks that went well, disturbed ones included."""
    books = Bookkeeping(store, lambda index: block(index, disturbed=index == 0))

    assert books.ledger.log_ratios(ARM, "explore") == []
    books.measure(2)

    assert books.ledger.failed == set()


def test_a_drafter_fails_with_any_of_its_arms(store: Store) -> None:
    """The failure of the idle drafter counts like that of an arm; others are not touched."""

    def fails(index: int) -> PairedBlock:
        raise NumericError("logits hold NaN")

    books = Bookkeeping(store, fails)

    books.measure(2, IDLE)
    books.measure(2, (1, SpeculativeConfig(drafter="other", num_speculative_tokens=1)))

    assert books.ledger.failed == {"draft", "other"}
    assert len(books.bench.asked) == 2


def test_expected_tokens_decide_and_are_stored(store: Store) -> None:
    """The luck of a block is kept in the ledger, and left out of estimates and log ratios."""

    def lucky(index: int) -> PairedBlock:
        plain = block(0)
        candidate = replace(plain.candidate, num_tokens=150 + 10 * index, num_rounds=80)
        return PairedBlock(plain.baseline, candidate, False, expected_tokens=132.0)

    books = Bookkeeping(store, lucky)

    books.measure(3)

    rows = store.measurements(books.run_id)
    assert [row.candidate_tokens for row in rows] == [150, 160, 170]
    assert {(row.expected_tokens, row.num_rounds) for row in rows} == {(132.0, 80)}
    assert books.ledger.log_ratios(ARM, "explore") == pytest.approx([log(1.2)] * 3)
    estimate = books.ledger.estimate(ARM, "explore")
    assert estimate is not None
    assert estimate.candidate_tokens_per_s == pytest.approx(120.0)


def test_scalars_of_libraries_become_plain_numbers(store: Store) -> None:
    """D15: numpy and torch scalars reach neither the store nor the estimate."""

    def odd(index: int) -> PairedBlock:
        plain = block(index)
        return PairedBlock(
            Tally(num_tokens=cast(int, numpy.int64(100)), seconds=cast(float, torch.tensor(1.5))),
            plain.candidate,
            cast(bool, numpy.bool_(False)),
        )

    books = Bookkeeping(store, odd)

    books.measure(2)

    row = store.measurements(books.run_id)[0]
    assert [type(value) for value in (row.baseline_tokens, row.baseline_s, row.disturbed)] == (
        [int, float, bool]
    )
    assert books.ledger.estimate(ARM, "explore") is not None

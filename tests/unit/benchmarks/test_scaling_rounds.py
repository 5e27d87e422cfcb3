"""Which rounds are timed, and that they are the rounds they claim to be. No look at a duration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.drafters.factory import layer_skip, ngram, weight_bytes
from engine.engine import Engine, RowOutcome
from engine.kv_cache import KvCache
from tests.benchmarks.scaling_cells import CONTEXT, RoundCell, all_cells
from tests.benchmarks.scaling_results import round_work
from tests.benchmarks.scaling_rounds import RoundBench
from tests.support.tiny_models import tiny_config, tiny_model

TARGET = tiny_model(7, max_len=512)
PLAIN = RoundCell(batch_size=3, num_speculative_tokens=2, context_len=40, num_layers=3)
CELLS = [
    PLAIN,
    replace(PLAIN, batch_size=1, context_len=70),
    replace(PLAIN, num_layers=1),
    replace(PLAIN, temperature=1.0),
    replace(PLAIN, context_len=CONTEXT, drafter="ngram"),
    replace(PLAIN, context_len=CONTEXT, drafter="layer-skip-1"),
]


@pytest.fixture(scope="module")
def bench() -> RoundBench:
    """Of the cells above."""
    return RoundBench(TARGET, Path("unused"), [ngram(), layer_skip(1)], CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_round_is_what_the_cell_says(
    bench: RoundBench, cell: RoundCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round has the cell's rows, drafts, context and depth, the same ones every time."""
    seen = []
    real = Engine.round

    def watched(engine: Engine, k: int) -> list[RowOutcome]:
        lengths = [engine.cache.lengths[slot] for slot in engine.sequences]
        tokens = [len(sequence.tokens) for sequence in engine.sequences.values()]
        outcomes = real(engine, k)
        drafted = [outcome.num_drafted for outcome in outcomes]
        seen.append((engine.target.config.num_layers, lengths, tokens, drafted))
        return outcomes

    monkeypatch.setattr(Engine, "round", watched)
    times = bench.time(cell, 2)
    rows, length = cell.batch_size, cell.context_len
    drafted = [cell.num_speculative_tokens] * rows
    assert seen == [(cell.num_layers, [length] * rows, [length + 1] * rows, drafted)] * 3
    assert len(times) == 2
    assert all(time.total_s > time.draft_s > 0 for time in times)
    assert all(time.verify_s == time.total_s - time.draft_s for time in times)


def test_a_cell_can_be_timed_again(bench: RoundBench) -> None:
    """Slots are free after a cell, so passes can follow one another in any order."""
    for cell in (*CELLS, *reversed(CELLS)):
        assert len(bench.time(cell, 1)) == 1


def test_a_missing_draft_is_an_error() -> None:
    """A drafter without a proposal would make a cell look cheap."""
    cell = replace(PLAIN, context_len=CONTEXT, drafter="ngram")
    bench = RoundBench(TARGET, Path("unused"), [replace(ngram(), min_n=300, max_n=300)], [cell])
    with pytest.raises(RuntimeError, match="fewer than 2 drafts"):
        bench.time(cell, 1)


def test_cells_vary_one_thing_beside_the_tokens() -> None:
    """Each cell once; what is not varied stays at its usual value."""
    cells = all_cells(30, ["ngram"])
    assert len(cells) == len(set(cells))
    for cell in cells:
        unusual = (
            cell.context_len != CONTEXT,
            cell.num_layers != 30,
            cell.temperature != 0,
            cell.drafter is not None,
        )
        assert sum(unusual) <= 1
    assert {cell.batch_size for cell in cells} == {1, 2, 4, 8, 16, 32, 64}
    assert {cell.tokens_per_row for cell in cells} == set(range(1, 10))
    assert {cell.num_layers for cell in cells} == {5, 10, 20, 30}


def test_a_shallow_target_is_cut_only_where_it_can_be() -> None:
    """Depths at or beyond the target's own are left out."""
    assert {cell.num_layers for cell in all_cells(10, [])} == {5, 10}


def test_work_of_a_round() -> None:
    """Counted by hand for the tiny model: bytes of what is multiplied with, operations of both."""
    config = tiny_config()
    work = round_work(PLAIN, config, torch.float32)
    multiplied = weight_bytes(config, torch.float32) // 4 - 12 * 16
    assert work.weight_bytes == 4 * multiplied
    assert work.flops == 2 * multiplied * 9
    assert work.kv_bytes == 3 * 43 * KvCache.bytes_per_token(config, torch.float32)
    assert work.attention_flops == 9 * 43 * 3 * (4 * 4 * 6)
    assert (work.layers, work.rows, work.sampled_tokens) == (3, 3, 0)


def test_only_sampled_rows_count_as_sampled() -> None:
    """The tokens of rows above temperature 0."""
    work = round_work(replace(PLAIN, temperature=1.0), tiny_config(), torch.float32)
    assert work.sampled_tokens == 9

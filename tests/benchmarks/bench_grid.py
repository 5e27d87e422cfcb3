"""`make grid-search`: one more pass over every arm at every batch size, in random order.

Each cell is one paired block against unloaded off. What is measured is kept after every cell, so a
run that is stopped goes on where it was; a pass that is done adds another one. Searches are then
judged by it (`make bench-search`).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter

from autotune.cli.bar import progress_bar
from autotune.progress import Stage
from autotune.settings import TuneSettings
from autotune.tuning.acceptance import AcceptanceProfile, profile_drafters
from autotune.tuning.belief import Cell
from autotune.tuning.costs import measure_costs
from autotune.tuning.paired import PairedBench
from autotune.tuning.prior import Prior
from autotune.tuning.session import Session, open_session
from engine.latency import CostTable
from policies.types import SpeculativeConfig
from tests.benchmarks.result import commit
from tests.benchmarks.search_grid import PATH, Grid, GridBlock, Prediction

BATCH_SIZES = (1, 4, 16, 64)
_BLOCK_S = 3.5  # rough device time of a block, for the bar
_SAVE_EVERY = 20  # cells


def settings() -> TuneSettings:
    """The search space of the embedded default, at the batch sizes of the grid."""
    return TuneSettings(batch_sizes=BATCH_SIZES)


def main() -> None:
    """Measure one pass, or the rest of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=1, help="passes over all cells")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after the last cell")
    parser.add_argument("--restart", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    before = None if options.restart or not PATH.exists() else Grid.from_json(PATH.read_text())
    with progress_bar() as progress:
        progress.plan(_plan(options.passes))
        session = open_session(settings(), progress)
        acceptance = profile_drafters(session, progress)
        prior = Prior(acceptance, CostTable(measure_costs(session, acceptance, progress)))
        grid = _begin(session, acceptance, prior) if before is None else before
        check(grid, identity(session))
        cells = _cells(session, acceptance)
        bench = PairedBench(session, acceptance, prior)
        blocks = list(grid.blocks)
        progress.begin("Measure the grid")
        start, passes = perf_counter(), _passes(blocks, cells, options.passes)
        total = sum(len(rest) for _, rest in passes)
        done = 0
        for number, rest in passes:
            for cell in rest:
                if perf_counter() - start > 60 * options.minutes:
                    break
                began = perf_counter()
                block = bench.measure(cell[1], cell[0], "grid", number)
                blocks.append(GridBlock.of(number, cell, block, perf_counter() - began))
                done += 1
                progress.update(done / total, f"pass {number}: {cell[1].label()} at {cell[0]}")
                if done % _SAVE_EVERY == 0:
                    _save(replace(grid, blocks=blocks))
        found = replace(grid, blocks=blocks)
        _save(found)
    sys.stdout.write(
        f"{len(found.by_cell())} of {len(cells)} cells, {len(blocks)} blocks, "
        f"{sum(one.disturbed for one in blocks)} disturbed, "
        f"{found.num_target_tokens} target tokens, {found.device_seconds:.0f} device seconds\n"
    )


def _plan(passes: int) -> list[Stage]:
    return [
        Stage("Load the model", 10),
        Stage("Record answers", 20),
        Stage("Replay the drafters", 60),
        Stage("Time the steps", 60),
        Stage("Measure the grid", passes * 432 * _BLOCK_S),
    ]


def _cells(session: Session, acceptance: AcceptanceProfile) -> list[Cell]:
    """Every arm that drafts and every idle drafter, at every batch size."""
    arms = acceptance.arms(session.settings.max_num_speculative_tokens)
    idle = [SpeculativeConfig(drafter=name) for name in acceptance.snapshots]
    return [(size, arm) for size in BATCH_SIZES for arm in (*arms, *idle)]


def _passes(
    blocks: Sequence[GridBlock], cells: Sequence[Cell], count: int
) -> list[tuple[int, list[Cell]]]:
    """The cells that passes still lack, in random order: an unfinished pass, then new ones."""
    last = max((block.pass_number for block in blocks), default=0)
    seen = {block.cell for block in blocks if block.pass_number == last and not block.disturbed}
    first = last if len(seen) < len(cells) else last + 1
    passes = []
    for number in range(first, first + count):
        rest = [cell for cell in cells if number != last or cell not in seen]
        random.Random(number).shuffle(rest)
        passes.append((number, rest))
    return passes


def _begin(session: Session, acceptance: AcceptanceProfile, prior: Prior) -> Grid:
    """An empty grid with its conditions and predictions."""
    return Grid(
        conditions={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "device": session.device.name,
            "dtype": session.target.dtype,
            "backend": session.target.backend,
            **identity(session),
        },
        predictions=[
            Prediction(
                batch_size=size,
                drafter=arm.drafter,
                num_speculative_tokens=arm.num_speculative_tokens,
                draft_temperature=arm.draft_temperature,
                tokens_per_s=prior.tokens_per_s(arm, size),
                off_tokens_per_s=prior.off_tokens_per_s(size),
                request_std_error=acceptance.log_std_error(arm),
                tokens_per_round=acceptance.replay(arm).tokens_per_round,
            )
            for size in BATCH_SIZES
            for arm in acceptance.arms(session.settings.max_num_speculative_tokens)
        ],
        blocks=[],
    )


def check(grid: Grid, now: Mapping[str, object]) -> None:
    """Blocks of different machines, models or requests do not belong together."""
    for key, value in now.items():
        if grid.conditions[key] != value:
            sys.exit(f"{PATH.name}: {key} is another one now: measure it anew with --restart")


def identity(session: Session) -> dict[str, object]:
    """What must be the same for two blocks to be comparable."""
    return {
        "device_fingerprint": session.device.fingerprint,
        "target_fingerprint": session.target.fingerprint,
        "workload_fingerprint": session.workload.fingerprint,
        "settings": plain(session.settings),
    }


def plain(given: TuneSettings) -> dict[str, object]:
    """Settings without what depends on where the project lies."""
    return {key: value for key, value in given.model_dump(mode="json").items() if key != "drafters"}


def _save(grid: Grid) -> None:
    PATH.write_text(grid.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`make bench-drafters`: the shipped drafters at batch 1, beside n-gram, layer-skip and vLLM.

Held-out requests, each at temperature 0, 0.7 and 1. Every drafter and K is replayed and its rate
predicted; in every cell the best of each kind are then measured in interleaved blocks against
unloaded off. The same checkpoints draft the same prompts in vLLM, acceptance beside ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from autotune.cli.bar import progress_bar
from autotune.progress import Progress, Stage
from autotune.settings import TuneSettings
from autotune.shipped import shipped_drafters
from autotune.tuning.acceptance import profile_drafters
from autotune.tuning.costs import measure_costs
from autotune.tuning.session import open_session
from engine.latency import CostTable
from tests.benchmarks.cells import (
    Cell,
    Measured,
    best_predicted,
    cells,
    measure,
    predictions,
)
from tests.benchmarks.result import report
from tests.benchmarks.vllm_side import compare_with_vllm

_ROOT = Path(__file__).resolve().parents[2]
_HELDOUT = _ROOT / "assets" / "drafters" / "recipe" / "heldout.jsonl"
_TEMPERATURES = (0.0, 0.7, 1.0)
_MAX_TOKENS = 128
_LAYER_SKIP = 10
_NUM_TRAINED = 2  # trained drafters measured per cell, the best by prediction
_WORTH_MEASURING = 0.8  # of the best predicted rate of the cell; predictions err far less


def main() -> None:
    """Run everything and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-task", type=int, default=12, help="requests per task and T")
    parser.add_argument("--blocks", type=int, default=8, help="blocks per measured arm")
    parser.add_argument("--vllm", type=Path, help="Python of vLLM's environment")
    options = parser.parse_args()
    shipped = shipped_drafters()
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        requests = _write_requests(Path(scratch) / "requests.jsonl", options.per_task)
        progress.plan(_plan(requests, options.blocks, with_vllm=options.vllm is not None))
        settings = TuneSettings(
            traffic=Path(scratch) / "requests.jsonl",
            drafters=shipped,
            layer_skip=(_LAYER_SKIP,),
            batch_sizes=(1,),
            draft_temperatures=(None,),
            num_requests=requests,
        )
        session = open_session(settings, progress)
        acceptance = profile_drafters(session, progress)
        costs = CostTable(measure_costs(session, acceptance, progress))
        found = list(cells(session, acceptance))
        progress.begin("Measure the best of each cell")
        rows = _measure_cells(found, costs, set(shipped), options.blocks, progress)
        beside = (
            compare_with_vllm(options.vllm, session, shipped, Path(scratch), progress)
            if options.vllm
            else None
        )
    summary = {
        "cells": len(rows),
        "cells_won_at_batch1": sum(bool(row["won_by_trained"]) for row in rows),
        "acceptance_vs_vllm_error_max": beside.error_max if beside else None,
        "drafters": list(session.drafters),
    }
    details = {
        "workload": {"source": "heldout", "requests": len(session.trajectories)},
        "cells": rows,
        "vllm": beside.rows if beside else None,
    }
    _print_table(rows)
    report("drafters", summary, details, session.device)


def _write_requests(path: Path, per_task: int) -> int:
    """The held-out prompts of each task, each at every temperature; returns their number."""
    seen: Counter[str] = Counter()
    lines = []
    for line in _HELDOUT.read_text(encoding="utf-8").splitlines():
        body = json.loads(line)
        task = body["metadata"]["task"]
        seen[task] += 1
        if seen[task] <= per_task:
            lines += [
                json.dumps({**body, "temperature": t, "max_tokens": _MAX_TOKENS})
                for t in _TEMPERATURES
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def _plan(num_requests: int, num_blocks: int, *, with_vllm: bool) -> list[Stage]:
    measuring = 12 * (_NUM_TRAINED + 2) * num_blocks * 2.5
    stages = [
        Stage("Load the model", 15),
        Stage("Record answers", num_requests * 0.9),
        Stage("Replay the drafters", num_requests * 2.0),
        Stage("Time the steps", 30),
        Stage("Measure the best of each cell", measuring),
    ]
    return [*stages, Stage("Compare with vLLM", 600)] if with_vllm else stages


def _measure_cells(
    found: list[Cell], costs: CostTable, trained: set[str], num_blocks: int, progress: Progress
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    done, total = 0, len(found) * (_NUM_TRAINED + 2) * num_blocks
    for cell in found:
        title = f"{cell.task}, T = {cell.temperature:g}"
        predicted = predictions(cell, costs)
        best = {
            name: config
            for name in cell.session.drafters
            if (config := best_predicted(cell, costs, name)) is not None
        }
        rate = {
            name: max(
                float(str(row["predicted_tokens_per_s"]))
                for row in predicted
                if row["drafter"] == name
            )
            for name in best
        }
        contenders = sorted(trained & best.keys(), key=lambda name: -rate[name])[:_NUM_TRAINED]
        contenders += [name for name in best if name not in trained]
        enough = _WORTH_MEASURING * max(rate.values())
        contenders = [name for name in contenders if rate[name] >= enough]

        def on_block(title: str = title) -> None:
            nonlocal done
            done += 1
            progress.update(min(done / total, 1.0), title)

        measured = measure(cell, [best[name] for name in contenders], num_blocks, on_block)
        rows.append(
            {
                "task": cell.task,
                "temperature": cell.temperature,
                "requests": len(cell.session.trajectories),
                "won_by_trained": _is_won(list(measured.values()), trained),
                "measured": [arm.to_json() for arm in measured.values()],
                "predicted": predicted,
            }
        )
    return rows


def _is_won(measured: list[Measured], trained: set[str]) -> bool:
    """The fastest arm is a trained drafter, and its gain over off is shown."""
    best = max(measured, key=lambda arm: arm.estimate.log_gain, default=None)
    return best is not None and best.config.drafter in trained and best.is_shown


def _print_table(rows: list[dict[str, object]]) -> None:
    """One line per measured arm."""
    for row in rows:
        won = "  trained drafter wins" if row["won_by_trained"] else ""
        sys.stdout.write(f"{row['task']}, T = {row['temperature']}{won}\n")
        arms = row["measured"]
        assert isinstance(arms, list)
        for arm in arms:
            sys.stdout.write(
                f"  {arm['drafter']:<14} K={arm['num_speculative_tokens']}  "
                f"{arm['off_tokens_per_s']:.1f} -> {arm['tokens_per_s']:.1f} tokens/s  "
                f"{arm['gain']:+.1%} ({arm['gain_low']:+.1%} to {arm['gain_high']:+.1%})\n"
            )


if __name__ == "__main__":
    main()

"""`make bench-scaling`: what a decode round costs, and a cost model with its error on unseen cells.

Rounds of the embedded target are timed over batch size, verify tokens, K of real drafters, context
length and number of layers. Every pass over the cells takes them in another random order, so that
a machine that drifts slows no variable in particular; what counts is the median of each cell.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import monotonic

import torch

from autotune.cli.bar import progress_bar
from autotune.device.detection import detect
from autotune.progress import Progress, Stage
from autotune.shipped import shipped_drafters
from engine.cache_folder import default_cache
from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.hub import EMBEDDED, resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.factory import DrafterSpec, from_folder, ngram
from engine.model import Transformer
from tests.benchmarks.result import report
from tests.benchmarks.scaling_cells import CONTEXT, RoundCell, all_cells
from tests.benchmarks.scaling_plot import PlotPoint, write_plot
from tests.benchmarks.scaling_results import FittedDrafts, FittedVerify, fit_drafts, fit_verify
from tests.benchmarks.scaling_rounds import RoundBench, RoundTime
from tests.benchmarks.scaling_tables import parameters, tables

_PLOT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "scaling.svg"
_DTYPE = torch.float32
_TRAINED = ("eagle3", "pruned-2")

Pass = Mapping[RoundCell, Sequence[RoundTime]]


def main() -> None:
    """Time, fit and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="for timing; at least one pass")
    parser.add_argument("--samples", type=int, default=2, help="rounds per cell and pass")
    parser.add_argument("--every", type=int, default=1, choices=range(1, 6), help="n-th cell only")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    shipped = shipped_drafters()
    specs = [ngram(), *(from_folder(name, shipped[name]) for name in _TRAINED)]
    with progress_bar() as progress:
        progress.plan(
            [Stage("Load the model", 30), Stage("Time the rounds", seconds), Stage("Fit", 5)]
        )
        progress.begin("Load the model")
        folder = resolve_model(EMBEDDED, default_cache(), progress.note)
        config = read_config(folder)
        target = Transformer.from_weights(config, read_weights(folder, config), dtype=_DTYPE)
        cells = all_cells(config.num_layers, [spec.name for spec in specs])[:: options.every]
        bench = RoundBench(target, folder, specs, cells)
        progress.begin("Time the rounds")
        passes = _time_passes(bench, cells, options.samples, seconds, progress)
        progress.begin("Fit")
        times = {cell: [time for done in passes for time in done[cell]] for cell in cells}
        verify, drafts = _fit(times, specs, config)
    write_plot(_PLOT, _points(verify, config.num_layers), f"Decode rounds, context {CONTEXT}")
    drift = _drift(passes)
    sys.stdout.write(tables(verify, drafts))
    sys.stdout.write(
        f"{len(passes)} passes, each beside the median of all: "
        f"{', '.join(f'{ratio - 1:+.1%}' for ratio in drift)}\n"
    )
    details = {
        "model": EMBEDDED,
        "dtype": str(_DTYPE).removeprefix("torch."),
        "backend": target.backend,
        "threads": torch.get_num_threads(),
        "drift_by_pass": drift,
        "verify": [row.to_json() for row in verify.rows],
        "drafters": {
            name: {
                "model": asdict(fitted.model),
                "errors": asdict(fitted.errors),
                "proposals": [row.to_json() for row in fitted.rows],
                "rounds": [row.to_json() for row in fitted.rounds],
            }
            for name, fitted in drafts.items()
        },
    }
    report("scaling", _summary(verify, drafts), details, detect("cpu").chosen)


def _time_passes(
    bench: RoundBench,
    cells: Sequence[RoundCell],
    num_samples: int,
    budget_s: float,
    progress: Progress,
) -> list[Pass]:
    """Pass over the cells again and again while another one fits the time."""
    passes: list[Pass] = []
    start = monotonic()
    elapsed = longest = 0.0
    while not passes or elapsed + longest <= budget_s:
        order = list(cells)
        random.Random(len(passes)).shuffle(order)
        found = {}
        for cell in order:
            found[cell] = bench.time(cell, num_samples)
            progress.update(
                min((monotonic() - start) / max(budget_s, 1.0), 1.0),
                f"pass {len(passes) + 1}, {cell}",
            )
        passes.append(found)
        longest = max(longest, monotonic() - start - elapsed)
        elapsed = monotonic() - start
    return passes


def _fit(
    times: Pass, specs: Sequence[DrafterSpec], config: ModelConfig
) -> tuple[FittedVerify, dict[str, FittedDrafts]]:
    verify = fit_verify(times, config, _DTYPE)
    return verify, {
        spec.name: fit_drafts(times, spec.name, verify.model, config, _DTYPE) for spec in specs
    }


def _drift(passes: Sequence[Pass]) -> list[float]:
    """Of each pass, the median over the cells of its time over the cell's median."""
    overall = {
        cell: median(time.total_s for done in passes for time in done[cell]) for cell in passes[0]
    }
    return [
        median(median(time.total_s for time in done[cell]) / overall[cell] for cell in done)
        for done in passes
    ]


def _points(verify: FittedVerify, num_layers: int) -> list[PlotPoint]:
    """The plane of batch size and verify tokens; all else as usual."""
    return [
        PlotPoint(
            batch_size=row.cell.batch_size,
            tokens_per_row=row.cell.tokens_per_row,
            median_s=row.median_s,
            low_s=min(row.seconds),
            high_s=max(row.seconds),
            fitted_s=row.fitted_s,
        )
        for row in verify.rows
        if (row.cell.num_layers, row.cell.context_len, row.cell.temperature)
        == (num_layers, CONTEXT, 0.0)
    ]


def _summary(verify: FittedVerify, drafts: Mapping[str, FittedDrafts]) -> dict[str, object]:
    return {
        "latency_error_median": verify.errors.median,
        "latency_error_p95": verify.errors.p95,
        "latency_error_max": verify.errors.max,
        "cells": len(verify.rows) + sum(len(fitted.rows) for fitted in drafts.values()),
        "sample_spread_median": median(row.spread for row in verify.rows),
        "draft_error_median": {name: fitted.errors.median for name, fitted in drafts.items()},
        "round_error_median": {name: fitted.round_errors.median for name, fitted in drafts.items()},
        **{parameter.key: parameter.value for parameter in parameters(verify.model)},
    }


if __name__ == "__main__":
    main()

"""`make bench-search`: how far from the best a search ends, and what it costs beside the grid.

The grid (`make grid-search`) holds every arm. Here the product's own search runs from nothing to a
published table; then the grid's best arms, those of the chosen envelope and what was published
are measured again side by side on fresh windows: that is the truth, since the best of many short
cells flatters itself.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from autotune.cli.bar import progress_bar
from autotune.device.detection import detect
from autotune.document import PublishedConfig
from autotune.progress import Progress, Stage
from autotune.tuning.acceptance import profile_drafters
from autotune.tuning.costs import measure_costs
from autotune.tuning.paired import PairedBench
from autotune.tuning.prior import Prior
from autotune.tuning.session import open_session
from autotune.tuning.tune import tune
from engine.latency import CostTable
from store.repository import Store
from tests.benchmarks.bench_grid import BATCH_SIZES, check, identity, plain, settings
from tests.benchmarks.result import report
from tests.benchmarks.search_grid import PATH, Grid
from tests.benchmarks.search_model import block_sd, latency_errors, replay_errors
from tests.benchmarks.search_truth import (
    Loss,
    Table,
    Truth,
    best_table,
    contenders,
    gain_of,
    grid_gains,
    kinds,
    measure_again,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search published, and what it took.

    Attributes:
        document: As published.
        num_target_tokens: Tokens of the target: recorded, timed and in blocks.
        device_seconds: From the first recorded answer to the decision.
        cold_start_s: From nothing to the published table.
    """

    document: PublishedConfig
    num_target_tokens: int
    device_seconds: float
    cold_start_s: float


class Watch:
    """Passes progress on, and remembers when stages began."""

    def __init__(self, inner: Progress) -> None:
        """Start the clock."""
        self._inner = inner
        self.start = monotonic()
        self.begun: dict[str, float] = {}

    def plan(self, stages: Sequence[Stage]) -> None:
        """All of this benchmark is planned already."""

    def begin(self, title: str) -> None:
        """Remember, and tell."""
        self.begun[title] = monotonic()
        self._inner.begin(title)

    def update(self, fraction: float, detail: str = "") -> None:
        """Tell."""
        self._inner.update(fraction, detail)

    def note(self, text: str) -> None:
        """Tell."""
        self._inner.note(text)


def main() -> None:
    """Search, measure again, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8, help="turns of the side-by-side measuring")
    options = parser.parse_args()
    if not PATH.exists():
        sys.exit(f"{PATH.name} is missing: run `make grid-search` first")
    grid = Grid.from_json(PATH.read_text(encoding="utf-8"))
    with progress_bar() as progress:
        progress.plan(_plan(options.blocks))
        device = detect(settings().device).chosen
        now = {"device_fingerprint": device.fingerprint, "settings": plain(settings())}
        check(grid, now)  # before the search, which takes long
        found = _search(Watch(progress))
        session = open_session(settings(), progress)
        check(grid, identity(session))
        acceptance = profile_drafters(session, progress)
        prior = Prior(acceptance, CostTable(measure_costs(session, acceptance, progress)))
        decided = Table.of(found.document)
        again = contenders(grid_gains(grid), decided)
        progress.begin("Measure side by side")
        blocks = measure_again(
            PairedBench(session, acceptance, prior), again, options.blocks, progress.update
        )
    truth = Truth(blocks)
    within, across = truth.within(decided), truth.across(decided)
    _print(truth, decided, within, across)
    report(
        "search",
        _summary(grid, found, within, across),
        _details(grid, found, truth, decided, within, across),
        session.device,
    )


def _search(watch: Watch) -> Found:
    """The product's own search, from nothing."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.db") as store:
        publication = tune(settings(), store, Path(folder) / "studies.db", watch)
        end = monotonic()
        if publication is None:
            sys.exit("the search had no valid trial")
        document = PublishedConfig.model_validate_json(publication.document)
        blocks = store.measurements(document.run_id)
        replayed = store.acceptance(document.run_id)
        first = replayed[0]  # every arm was replayed on all recorded answers
        recorded = sum(
            row.num_output_tokens
            for row in replayed
            if (row.drafter, row.draft_temperature, row.num_speculative_tokens)
            == (first.drafter, first.draft_temperature, first.num_speculative_tokens)
        )
        timed = sum(
            row.num_tokens * row.num_samples
            for row in store.costs(document.run_id)
            if row.kind == "verify"
        )
    in_blocks = sum(row.baseline_tokens + row.candidate_tokens for row in blocks)
    return Found(
        document=document,
        num_target_tokens=recorded + timed + in_blocks,
        device_seconds=end - watch.begun["Record answers"],
        cold_start_s=end - watch.start,
    )


def _plan(num_blocks: int) -> list[Stage]:
    load = [
        Stage("Load the model", 10),
        Stage("Record answers", 15),
        Stage("Replay the drafters", 60),
        Stage("Time the steps", 60),
    ]
    arms = len(BATCH_SIZES) * 9
    return [
        *load,
        Stage("Search", 120),
        Stage("Validate the best", 240),
        *load,
        Stage("Measure side by side", arms * num_blocks * 2.7),
    ]


def _summary(
    grid: Grid, found: Found, within: Mapping[int, Loss], across: Loss
) -> dict[str, object]:
    gains = grid_gains(grid)
    spreads, optima = [], set()
    for size in BATCH_SIZES:
        row = {arm: gain for (at, arm), gain in gains.items() if at == size}
        best = max(row, key=lambda arm: row[arm])
        optima.add(best if row[best] > 0 else None)
        spreads.append(1 - math.exp(min(row.values()) - max(0.0, row[best])))
    errors, replayed = latency_errors(grid), replay_errors(grid)
    worst = max(within.values(), key=lambda loss: loss.log_loss)
    return {
        "regret_max": worst.share,
        "regret_max_low": worst.low_share,
        "regret_across_max": across.share,
        "regret_median": median(loss.share for loss in within.values()),
        "token_share": found.num_target_tokens / grid.num_target_tokens,
        "device_second_share": found.device_seconds / grid.device_seconds,
        "replay_error_max": max(abs(one.error) for one in replayed),
        "replay_error_max_in_std_errors": max(abs(one.error) / one.std_error for one in replayed),
        "latency_error_median": median(errors),
        "latency_error_p95": errors[int(0.95 * len(errors))],
        "cold_start_s": found.cold_start_s,
        "landscape_spread": min(spreads),
        "distinct_optima": len(optima),
    }


def _details(
    grid: Grid,
    found: Found,
    truth: Truth,
    decided: Table,
    within: Mapping[int, Loss],
    across: Loss,
) -> dict[str, object]:
    gains = grid_gains(grid)
    return {
        "grid": {
            **{key: grid.conditions[key] for key in ("date", "commit", "device")},
            "blocks": len(grid.blocks),
            "disturbed": sum(block.disturbed for block in grid.blocks),
            "target_tokens": grid.num_target_tokens,
            "device_seconds": grid.device_seconds,
            "block_sd": {str(size): block_sd(grid, size) for size in BATCH_SIZES},
            "best_envelopes": [
                {
                    "kind": kind,
                    "arms": {str(b): arm.label() for b, arm in best_table(gains, kind).items()},
                }
                for kind in kinds(gains)[:3]
            ],
        },
        "search": {
            "published": {str(size): arm.label() for size, arm in decided.arms.items()},
            "reason": found.document.reason,
            "target_tokens": found.num_target_tokens,
            "device_seconds": found.device_seconds,
        },
        "within": {
            str(size): {"best": loss.best, "regret": loss.share, "low": loss.low_share}
            for size, loss in within.items()
        },
        "across": {"best": across.best, "regret": across.share, "low": across.low_share},
        "measured_again": [
            {
                "batch_size": size,
                "arm": arm.label(),
                "log_gain": gain,
                "grid_log_gain": gains.get((size, arm)),
                "std_error": truth.estimates[size, arm].std_error,
                "num_blocks": truth.estimates[size, arm].num_blocks,
            }
            for (size, arm), gain in sorted(truth.gains.items(), key=lambda one: one[0][0])
        ],
    }


def _print(truth: Truth, decided: Table, within: Mapping[int, Loss], across: Loss) -> None:
    for size, arm in decided.arms.items():
        loss = within[size]
        sys.stdout.write(
            f"batch {size}: published {arm.label()} "
            f"(log gain {gain_of(truth.gains, (size, arm)):+.3f}), best within {loss.best}, "
            f"regret {loss.share:.2%} (lower bound {loss.low_share:.2%})\n"
        )
    sys.stdout.write(f"across envelopes: best {across.best}, regret {across.share:.2%}\n")


if __name__ == "__main__":
    main()

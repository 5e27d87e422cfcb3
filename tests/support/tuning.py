"""A whole search on a tiny checkpoint: its folder, its settings, and a check of its figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.document import CellEvidenceModel, Interval, PublishedConfig
from autotune.figures import interval
from autotune.progress import Silent
from autotune.settings import TuneSettings
from autotune.tuning.tune import tune
from policies.estimate import paired_estimate
from policies.types import Block, SpeculativeConfig
from store.records import MeasurementRecord, Publication
from store.repository import Store
from tests.support.checkpoints import H0
from tests.support.sessions import FakeClock, QuietWatch
from tests.support.traffic import mixed, prompt, write_traffic

BATCH_SIZES = (1, 3)
K_MAX = 3
SMALL: dict[str, Any] = {"layer_skip": (), "batch_sizes": (2,), "trials": 2}


@dataclass
class World:
    """A folder with traffic, drafts, a store and studies."""

    folder: Path
    progress: Silent = field(default_factory=Silent)

    def __post_init__(self) -> None:
        rows = [*mixed(8), prompt("x" * 300), prompt("abc", stop=["ab"])]
        self.traffic = write_traffic(self.folder / "traffic.jsonl", rows)
        self.studies = self.folder / "studies.db"
        self.location = self.folder / "spectuned.db"

    def settings(self, **changes: Any) -> TuneSettings:
        """Small in every respect."""
        values: dict[str, Any] = {
            "target": str(H0),
            "traffic": self.traffic,
            "layer_skip": (1,),
            "batch_sizes": BATCH_SIZES,
            "max_num_speculative_tokens": K_MAX,
            "draft_temperatures": (None, 0.7),
            "trials": 4,
            "explore_blocks": 2,
            "validate_blocks": 24,
            "window_s": 4.0,
            "dtype": "float32",
            "device": "cpu",
        }
        return TuneSettings.parse(values | changes)

    def tune(self, store: Store, **changes: Any) -> Publication | None:
        """Run the job."""
        return tune(self.settings(**changes), store, self.studies, self.progress)


def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second, windows have few rows, and nobody else uses the processors."""
    clock = FakeClock()
    monkeypatch.setattr("autotune.tuning.paired._ROWS_PER_WINDOW", 4)
    monkeypatch.setattr("autotune.tuning.paired.perf_counter", clock)
    monkeypatch.setattr("engine.latency.perf_counter", clock)
    monkeypatch.setattr("autotune.tuning.paired.LoadWatch", QuietWatch)


def blocks_of(
    rows: tuple[MeasurementRecord, ...], batch_size: int, config: SpeculativeConfig, stage: str
) -> list[Block]:
    """The blocks of an arm that count."""
    return [
        Block(
            baseline_tokens=row.baseline_tokens,
            baseline_s=row.baseline_s,
            candidate_tokens=row.candidate_tokens,
            candidate_s=row.candidate_s,
            expected_tokens=row.expected_tokens,
        )
        for row in rows
        if (row.batch_size, row.stage, row.disturbed) == (batch_size, stage, False)
        and (row.drafter, row.num_speculative_tokens, row.draft_temperature)
        == (config.drafter, config.num_speculative_tokens, config.draft_temperature)
    ]


def arms_of(cell: CellEvidenceModel) -> list[tuple[SpeculativeConfig, Interval]]:
    """The measured arms of a cell with their published figures."""
    found = []
    if cell.measured is not None:
        chosen = SpeculativeConfig(
            drafter=cell.drafter,
            num_speculative_tokens=cell.num_speculative_tokens,
            draft_temperature=cell.draft_temperature if cell.num_speculative_tokens else None,
        )
        found.append((chosen, cell.measured))
    if cell.best_candidate is not None and cell.best_candidate_measured is not None:
        found.append((cell.best_candidate.config(), cell.best_candidate_measured))
    return found


def num_recomputed(store: Store, publication: Publication) -> int:
    """Recompute every published figure from the stored blocks; how many there were."""
    document = PublishedConfig.model_validate_json(publication.document)
    rows = store.measurements(publication.run_id)
    count = 0
    for cell in document.evidence:
        for config, published in arms_of(cell):
            fresh = blocks_of(rows, cell.batch_size, config, "validate")
            blocks = fresh or blocks_of(rows, cell.batch_size, config, "explore")
            estimate = paired_estimate(blocks, published.request_std_error)
            if not fresh:
                estimate = replace(estimate, log_ratios=())
            assert interval(estimate, document.policy.confidence) == published
            count += 1
    return count

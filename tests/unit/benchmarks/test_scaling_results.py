"""From times to models, tables and the picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.benchmarks.cost_fit import CostModel
from tests.benchmarks.draft_fit import DraftModel, DraftWork
from tests.benchmarks.scaling_cells import RoundCell, all_cells
from tests.benchmarks.scaling_plot import PlotPoint, write_plot
from tests.benchmarks.scaling_results import fit_drafts, fit_verify, round_work
from tests.benchmarks.scaling_rounds import RoundTime
from tests.benchmarks.scaling_tables import parameters, tables
from tests.support.tiny_models import tiny_config

CONFIG = tiny_config(num_layers=30)
COSTS = {
    "rounds": 2e-3,
    "layers": 1e-4,
    "rows": 2e-4,
    "sampled_tokens": 1e-4,
    "kv_bytes": 1e-10,
    "attention_flops": 2e-11,
    "weight_bytes": 2e-9,
    "flops": 5e-10,
}
VERIFY = CostModel(COSTS, dict.fromkeys(COSTS, 0.0), 3.0)
DRAFT = DraftModel(first_s=1e-3, first_row_s=1e-5, further_s=2e-3, further_row_s=2e-5)


def times_of(cell: RoundCell) -> list[RoundTime]:
    """Three rounds of a machine that obeys both models; their median is exact."""
    verify_s = VERIFY.seconds(round_work(cell, CONFIG, torch.float32))
    draft_s = 0.0
    if cell.drafter is not None:
        work = DraftWork(rows=cell.batch_size, num_drafts=cell.num_speculative_tokens)
        draft_s = DRAFT.seconds(work)
    return [
        RoundTime(verify_s * scale + draft_s * scale, draft_s * scale) for scale in (0.9, 1.0, 1.3)
    ]


TIMES = {cell: times_of(cell) for cell in all_cells(30, ["eagle3"])}


def test_verify_passes_are_fitted_without_the_drafters_cells() -> None:
    """The medians of the other cells are predicted, whatever the spread around them."""
    found = fit_verify(TIMES, CONFIG, torch.float32)
    assert [row.cell for row in found.rows] == [cell for cell in TIMES if cell.drafter is None]
    assert found.errors.max < 0.01
    assert found.rows[0].spread == pytest.approx(0.1)


def test_whole_rounds_are_predicted_by_both_models() -> None:
    """A round is a proposal and a verify pass."""
    found = fit_drafts(TIMES, "eagle3", VERIFY, CONFIG, torch.float32)
    assert len(found.rows) == len(found.rounds) == 14
    assert found.errors.max < 1e-6
    assert found.round_errors.max < 1e-6
    for proposal, whole in zip(found.rows, found.rounds, strict=True):
        assert whole.median_s > proposal.median_s


def test_parameters_have_units() -> None:
    """Seconds per byte become gigabytes per second; errors keep their relative size."""
    errors = {**dict.fromkeys(COSTS, 0.0), "weight_bytes": 2e-10, "flops": 6e-10}
    found = {p.key: p for p in parameters(CostModel(COSTS, errors, 3.0))}
    assert found["overhead_ms"].value == pytest.approx(2.0)
    assert found["layer_overhead_us"].value == pytest.approx(100.0)
    assert found["kv_gb_per_s"].value == pytest.approx(10.0)
    assert found["weights_gb_per_s"].value == pytest.approx(0.5)
    assert found["weights_gb_per_s"].std_error == pytest.approx(0.05)
    assert found["linear_gflop_per_s"].value is None
    assert found["knee_sharpness"].value == 3.0


def test_tables_name_the_worst_cell() -> None:
    """A cell that takes twice its time is on top of the list."""
    odd = next(cell for cell in TIMES if cell.batch_size == 8 and cell.tokens_per_row == 4)
    slow = [RoundTime(2 * t.total_s, 2 * t.draft_s) for t in TIMES[odd]]
    verify = fit_verify({**TIMES, odd: slow}, CONFIG, torch.float32)
    drafts = {"eagle3": fit_drafts(TIMES, "eagle3", verify.model, CONFIG, torch.float32)}
    lines = tables(verify, drafts).splitlines()
    worst = lines[lines.index("  furthest off:") + 1]
    assert worst.strip().startswith(str(odd))
    assert any(line.startswith("Drafter eagle3: 14 cells") for line in lines)


def test_the_picture_is_an_svg(tmp_path: Path) -> None:
    """It names the axes and shows every batch size."""
    points = [
        PlotPoint(
            batch_size=rows,
            tokens_per_row=tokens,
            median_s=0.01 * rows,
            low_s=0.009 * rows,
            high_s=0.02 * rows,
            fitted_s=0.011 * rows,
        )
        for rows in (1, 64)
        for tokens in (1, 2)
    ]
    write_plot(tmp_path / "scaling.svg", points, "Decode rounds")
    text = " ".join(ElementTree.parse(tmp_path / "scaling.svg").getroot().itertext())
    for wanted in ("Decode rounds", "verify tokens per row", "batch size", "64"):
        assert wanted in text

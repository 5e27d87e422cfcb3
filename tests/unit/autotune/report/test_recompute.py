"""Decisions made again from the ledger, where they hang on more than the estimates.

Whole documents are recomputed in `tests/e2e/test_tune.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.document import Arm, DecidedAbout, PublishedConfig
from autotune.report.recompute import Recomputed, recompute
from policies.types import SpeculativeConfig
from store.records import FailureRecord, MeasurementRecord
from store.repository import Store
from tests.contract.store_samples import make_failure, make_run
from tests.documents import NGRAM, document, figures
from tests.unit.autotune.cli.samples import RUN_ID, blocks

K3 = SpeculativeConfig(drafter="ngram", num_speculative_tokens=3)
K4 = replace(K3, num_speculative_tokens=4)
IDLE = SpeculativeConfig(drafter="ngram")
QUIET = [100, 101, 99, 100] * 10
TIED = [
    *blocks(1, K3, [150, 152, 148, 150] * 5, stage="validate"),
    *blocks(1, K4, [151, 152, 149, 150] * 5, stage="validate"),
]
"""K = 4 is half a percent better than K = 3: a tie, which the smaller K wins."""


def asked(sizes: Sequence[int], candidates: dict[int, SpeculativeConfig]) -> PublishedConfig:
    """A document that was asked about n-gram drafting."""
    base = document(NGRAM, evidence=figures("ngram", dict.fromkeys(sizes)))
    question = DecidedAbout(
        drafter="ngram",
        max_num_speculative_tokens=4,
        draft_temperature=None,
        candidates={size: Arm.of(arm) for size, arm in candidates.items()},
        weights=None,
        tie_margin=0.01,
    )
    return base.model_copy(update={"question": question, "run_id": RUN_ID})


def again(
    folder: Path,
    config: PublishedConfig,
    measured: Sequence[MeasurementRecord],
    failures: Sequence[FailureRecord] = (),
) -> Recomputed:
    """Recompute from a store with these records."""
    with Store.open(folder / "store.db") as store:
        store.begin_run(make_run(run_id=RUN_ID))
        store.add_measurements(measured)
        for failure in failures:
            store.add_failure(failure)
        found = recompute(store, config)
    assert found is not None
    return found


@pytest.mark.parametrize(("candidates", "k"), [({}, 3), ({1: K4}, 4), ({1: K3}, 3)])
def test_the_candidates_decide(
    tmp_path: Path, candidates: dict[int, SpeculativeConfig], k: int
) -> None:
    """Where two K tie, the one that was asked about is taken."""
    found = again(tmp_path, asked([1], candidates), TIED)
    assert found.decision.cells[0].chosen.num_speculative_tokens == k


def test_a_batch_size_without_a_measurement_is_decided_too(tmp_path: Path) -> None:
    """It has a cell, off; and the levels of all bounds count it."""
    measured = [*TIED, *blocks(1, IDLE, QUIET, stage="validate")]
    alone = again(tmp_path, asked([1], {1: K4}), measured)
    (tmp_path / "both").mkdir()

    both = again(tmp_path / "both", asked([1, 16], {1: K4}), measured)

    assert [cell.batch_size for cell in both.decision.cells] == [1, 16]
    assert not both.decision.cells[1].chosen.speculates
    assert both.decision.reason != alone.decision.reason


def test_a_drafter_that_failed_is_no_evidence(tmp_path: Path) -> None:
    """As in the search: nothing of it is decided about."""
    failure = make_failure(RUN_ID, batch_size=1, drafter="ngram", num_speculative_tokens=4)
    found = again(tmp_path, asked([1], {1: K4}), TIED, [failure])
    assert found.decision.cells[0].chosen.is_off
    assert not any(arm.drafter == "ngram" for _, arm in found.evidence)

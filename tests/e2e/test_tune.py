"""The main job on a tiny checkpoint: record, replay, time, search, validate, decide, publish.

A fake clock makes every step take one second, so that an arm's gain is its tokens per round and
the outcome is the same at every run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from autotune.device.detection import Detection, DeviceInfo
from autotune.document import PublishedConfig
from autotune.errors import ConfigError
from autotune.progress import Silent
from autotune.report.recompute import differences, recompute
from autotune.settings import TuneSettings
from autotune.tuning.rebuild import rebuild_studies
from autotune.tuning.remeasure import Comparison, remeasure
from policies.estimate import paired_estimate
from policies.types import SpeculativeConfig
from store.records import MeasurementRecord, Publication
from store.repository import Store
from tests.support.checkpoints import A11, changed_copy, disturbed, overflowing
from tests.support.tuning import (
    BATCH_SIZES,
    K_MAX,
    World,
    arms_of,
    blocks_of,
    fake_machine,
    num_recomputed,
)


@dataclass
class Tuned:
    """A search with six drafters, a smaller one, and two second measurements of its outcome."""

    store: Store
    world: World
    first: Publication
    second: Publication
    notes: list[str]
    comparisons: tuple[Comparison, ...]
    without_twin: tuple[Comparison, ...]
    late_notes: list[str]

    @property
    def document(self) -> PublishedConfig:
        """The first publication."""
        return PublishedConfig.model_validate_json(self.first.document)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    """Run everything once."""
    world = World(tmp_path_factory.mktemp("tuned"))
    twin = changed_copy(world.folder / "twin")
    drafters = {
        "twin": twin,
        "close": changed_copy(world.folder / "close", disturbed),
        "overflow": changed_copy(world.folder / "overflow", overflowing),
        "foreign": A11 / "draft",
    }
    with pytest.MonkeyPatch.context() as monkeypatch, Store.open(world.location) as store:
        fake_machine(monkeypatch)
        first = world.tune(store, drafters=drafters)
        notes = list(world.progress.notes)
        second = world.tune(
            store, drafters={"twin": twin}, layer_skip=(), trials=2, validate_blocks=20, seed=5
        )
        assert first is not None
        assert second is not None
        comparisons = remeasure(store, world.progress, scope=first.scope)
        twin.rename(world.folder / "moved")
        late = Silent()
        without_twin = remeasure(store, late, scope=first.scope)
        yield Tuned(store, world, first, second, notes, comparisons, without_twin, late.notes)


# ---------------------------------------------------------------- the publication


def test_the_first_publication_is_generation_1(tuned: Tuned) -> None:
    """Nothing before it; the bytes in the store are the document."""
    assert (tuned.first.generation, tuned.first.previous) == (1, None)
    assert tuned.document.identity.generation == 1
    assert tuned.document.to_bytes() == tuned.first.document
    assert tuned.document.run_id == tuned.first.run_id


def test_the_second_follows_it(tuned: Tuned) -> None:
    """Same scope, next generation."""
    document = PublishedConfig.model_validate_json(tuned.second.document)

    assert tuned.second.scope == tuned.first.scope
    assert (document.identity.generation, document.identity.previous) == (2, 1)
    assert tuned.store.latest(tuned.first.scope) == tuned.second
    assert document.run_id != tuned.document.run_id


def test_the_best_drafter_wins(tuned: Tuned) -> None:
    """When every step costs the same, the draft that accepts everything is loaded at large K."""
    document = tuned.document

    assert document.envelope.drafter == "twin"
    assert document.envelope.method == "draft_model"
    assert document.envelope.draft_parameters == {"model": str(tuned.world.folder / "twin")}
    assert document.num_speculative_tokens(1) >= 2
    assert {cell.status for cell in document.evidence} == {"validated"}


def test_the_schedule_is_contiguous(tuned: Tuned) -> None:
    """From 1 on, without gap or overlap, measured sizes by themselves, and an open tail."""
    cells = tuned.document.schedule

    assert cells[0].bs_lo == 1
    assert cells[-1].bs_hi is None
    for before, after in pairwise(cells):
        assert before.bs_hi is not None
        assert after.bs_lo == before.bs_hi + 1
    assert [cell.measured_at for cell in cells if cell.measured_at] == list(BATCH_SIZES)


def test_the_workload_is_named_and_counted(tuned: Tuned) -> None:
    """The file, and what was really used of it."""
    workload = tuned.document.workload

    assert workload.source == "file:traffic.jsonl"
    assert workload.num_requests == 8
    assert workload.share_by_task == {"chat": 0.5, "copy": 0.5}
    assert tuned.store.run(tuned.first.run_id).workload_fingerprint == workload.fingerprint


def test_what_was_skipped_is_noted(tuned: Tuned) -> None:
    """Requests by reason, drafters by name; the search went on without them."""
    notes = "\n".join(tuned.notes)

    assert "1 longer than max_len = 256 tokens" in notes
    assert "1 stop string of more than one token" in notes
    assert "drafter foreign skipped: " in notes
    assert "id 97: 'e' in the draft, 'a' in the target" in notes
    assert "drafter overflow skipped: logits hold NaN" in notes
    assert len(tuned.notes) == 3


def test_every_published_figure_can_be_recomputed(tuned: Tuned) -> None:
    """From the stored blocks, fresh ones where there are any, and the requests' part."""
    assert num_recomputed(tuned.store, tuned.first) >= len(BATCH_SIZES)
    assert num_recomputed(tuned.store, tuned.second) >= len(BATCH_SIZES)


class Tampered:
    """A store whose candidates took less time than was measured."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def measurements(self, run_id: str) -> tuple[MeasurementRecord, ...]:
        """Every candidate faster by a tenth."""
        rows = self._store.measurements(run_id)
        return tuple(replace(row, candidate_s=0.9 * row.candidate_s) for row in rows)


def test_every_decision_can_be_made_again(tuned: Tuned) -> None:
    """Equal to the bit from the ledger alone; from other blocks it is seen to differ."""
    for publication in (tuned.first, tuned.second):
        document = PublishedConfig.model_validate_json(publication.document)
        again = recompute(tuned.store, document)
        assert again is not None
        assert differences(document, again) == ()
        other = recompute(cast(Store, Tampered(tuned.store)), document)
        assert other is not None
        assert differences(document, other)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reason", "Because."),
        ("envelope.max_num_speculative_tokens", 7),
        ("envelope.drafter", "other"),
        ("schedule.0.num_speculative_tokens", 7),
        ("schedule.0.status", "provisional"),
        ("evidence.0.num_speculative_tokens", 7),
        ("evidence.0.draft_temperature", 0.123),
        ("evidence.0.reason", "Because."),
        ("evidence.0.measured.gain", 9.0),
        ("evidence.0.measured.candidate_tokens_per_s", 1e9),
        ("evidence.0.best_candidate.num_speculative_tokens", 7),
        ("evidence.0.best_candidate_measured.high", 9.0),
    ],
)
def test_a_figure_that_the_ledger_does_not_give_is_found(
    tuned: Tuned, path: str, value: object
) -> None:
    """Any one of them, changed in the document."""
    root = json.loads(tuned.first.document)
    *parents, last = path.split(".")
    node = root
    for key in parents:
        node = node[int(key)] if key.isdecimal() else node[key]
    assert node[last] != value
    node[last] = value
    document = PublishedConfig.model_validate(root)

    again = recompute(tuned.store, document)

    assert again is not None
    assert len(differences(document, again)) == 1


def test_studies_can_be_made_anew(tuned: Tuned, tmp_path: Path) -> None:
    """From the ledger alone: the same studies, trial by trial, as were written on the way."""
    live = tuned.world.studies
    path = tmp_path / "studies.db"
    path.write_text("not a database")
    runs = [run for run in reversed(tuned.store.runs()) if run.kind == "tune"]

    rebuilt = rebuild_studies(tuned.store, path, runs)

    names = {study.name for study in rebuilt}
    assert names <= set(optuna.get_all_study_names(f"sqlite:///{live}"))
    assert len(names) == len(runs) * len(BATCH_SIZES)
    for name in names:
        before, after = (
            [
                (trial.number, trial.params, trial.distributions, trial.values, trial.state)
                for trial in optuna.load_study(study_name=name, storage=f"sqlite:///{file}").trials
            ]
            for file in (live, path)
        )
        assert before == after


def test_a_document_without_its_question_is_not_judged(tuned: Tuned) -> None:
    """Documents of before do not say what they were asked."""
    document = PublishedConfig.model_validate_json(tuned.first.document)
    assert recompute(tuned.store, document.model_copy(update={"question": None})) is None


# ---------------------------------------------------------------- the evidence


def test_the_run_is_stored_with_its_settings(tuned: Tuned) -> None:
    """Enough to do it again."""
    run = tuned.store.run(tuned.first.run_id)

    assert (run.kind, run.status, run.reason) == ("tune", "done", None)
    assert (run.seed, run.dtype) == (0, "float32")
    assert TuneSettings.parse(dict(run.settings)).batch_sizes == BATCH_SIZES
    assert run.target_fingerprint == tuned.document.match.target.fingerprint


def test_acceptance_is_stored_for_every_drafter_that_works(tuned: Tuned) -> None:
    """By task and temperature; the target as its own draft accepts everything at T = 0."""
    rows = tuned.store.acceptance(tuned.first.run_id)

    assert {row.drafter for row in rows} == {"ngram", "layer-skip-1", "twin", "close"}
    assert {(row.task, row.temperature) for row in rows} == {
        (task, temperature) for task in ("chat", "copy") for temperature in (0.0, 0.8)
    }
    greedy = [row for row in rows if row.drafter == "twin" and row.temperature == 0.0]
    assert greedy
    for row in greedy:
        assert sum(row.num_accepted_tokens_per_pos) == row.num_draft_tokens
    for row in rows:
        assert 1 <= row.tokens_per_round <= 1 + row.num_speculative_tokens


def test_predictions_are_stored_for_every_arm(tuned: Tuned) -> None:
    """Before anything was measured, at every batch size."""
    for batch_size in BATCH_SIZES:
        rows = tuned.store.predictions(tuned.first.run_id, batch_size)
        arms = Counter(
            (row.drafter, row.num_speculative_tokens, row.draft_temperature) for row in rows
        )
        assert len(arms) == len(rows) == (1 + 3 * 2) * K_MAX
        assert all(row.tokens_per_s > 0 for row in rows)


def test_blocks_of_a_search_know_what_replay_expects(tuned: Tuned) -> None:
    """Of every arm that drafts; idle ones have no luck, and a second measurement takes none."""
    searched = tuned.store.measurements(tuned.first.run_id)
    assert all((row.expected_tokens is None) == (row.num_drafts == 0) for row in searched)
    assert any(row.expected_tokens not in (None, row.candidate_tokens) for row in searched)
    measured_again = [
        row
        for run in tuned.store.runs()
        if run.kind == "remeasure"
        for row in tuned.store.measurements(run.run_id)
    ]
    assert measured_again
    assert all(row.expected_tokens is None for row in measured_again)


def test_the_rules_of_thumb_and_the_incumbent_are_tried(tuned: Tuned) -> None:
    """The second search begins with what the first one published and it still has."""
    second = tuned.store.measurements(tuned.second.run_id)
    published = {
        (cell.batch_size, cell.drafter, cell.num_speculative_tokens)
        for cell in tuned.document.evidence
        if cell.num_speculative_tokens
    }
    asked = {
        (row.batch_size, row.drafter, row.num_speculative_tokens)
        for row in second
        if row.proposed_by == "incumbent"
    }
    assert published
    assert asked == {cell for cell in published if cell[1] in {"ngram", "twin"}}


def test_costs_are_stored(tuned: Tuned) -> None:
    """Verify passes, and proposals of every drafter that works."""
    rows = tuned.store.costs(tuned.first.run_id)

    assert {row.kind for row in rows} == {"verify", "draft"}
    assert {row.drafter for row in rows if row.kind == "draft"} == (
        {"ngram", "layer-skip-1", "twin", "close"}
    )
    assert {row.batch_size for row in rows} == set(BATCH_SIZES)


def test_the_search_keeps_to_its_budget(tuned: Tuned) -> None:
    """Trials go where the choice is in doubt, each with its blocks; then fresh blocks."""
    rows = tuned.store.measurements(tuned.first.run_id)

    explored = [row for row in rows if row.stage == "explore"]
    assert explored
    trials = Counter((row.batch_size, row.trial_number) for row in explored)
    assert set(trials.values()) == {2}
    assert {row.proposed_by for row in explored} == {"sampler"}
    assert all(row.trial_number is not None for row in explored)
    fresh = [row for row in rows if row.stage == "validate"]
    assert {row.proposed_by for row in fresh} == {"validation"}
    assert {row.batch_size for row in fresh} == set(BATCH_SIZES)
    # 4 trials of 2 blocks and 24 fresh blocks for each batch size, which may move between them.
    assert len(rows) <= len(BATCH_SIZES) * (4 * 2 + 24)


def test_what_is_clear_takes_as_few_blocks_as_can_show_it(tuned: Tuned) -> None:
    """Without noise ten fresh blocks decide at 0.05 / 4; two are measured at once."""
    rows = tuned.store.measurements(tuned.first.run_id)

    for cell in tuned.document.evidence:
        assert cell.measured is not None
        assert cell.measured.num_blocks == 10
        assert cell.measured.low > 0.01
    drafting = Counter(
        (row.batch_size, row.num_speculative_tokens)
        for row in rows
        if row.stage == "validate" and row.num_speculative_tokens
    )
    assert set(drafting.values()) == {10}


def test_the_study_holds_every_trial(tuned: Tuned) -> None:
    """The notes in Optuna's file are those of the ledger, number by number."""
    rows = tuned.store.measurements(tuned.first.run_id)
    noted = set()
    for batch_size in BATCH_SIZES:
        study = optuna.load_study(
            study_name=f"{tuned.first.run_id}/batch-{batch_size}",
            storage=f"sqlite:///{tuned.world.studies}",
        )
        for trial in study.trials:
            params = trial.params
            noted.add(
                (batch_size, trial.number, params["drafter"], params["num_speculative_tokens"])
            )
    assert noted == {
        (row.batch_size, row.trial_number, row.drafter, row.num_speculative_tokens)
        for row in rows
        if row.stage == "explore"
    }


def test_studies_belong_to_their_run(tuned: Tuned) -> None:
    """D5: a study per run and batch size, so that changed drafters never clash."""
    names = optuna.get_all_study_names(f"sqlite:///{tuned.world.studies}")

    assert set(names) == {
        f"{publication.run_id}/batch-{batch_size}"
        for publication in (tuned.first, tuned.second)
        for batch_size in BATCH_SIZES
    }


# ---------------------------------------------------------------- the second measurement


def latest_arms(tuned: Tuned) -> set[tuple[int, SpeculativeConfig]]:
    """The measured arms behind the newest publication, which is what is measured again."""
    document = PublishedConfig.model_validate_json(tuned.second.document)
    return {(cell.batch_size, config) for cell in document.evidence for config, _ in arms_of(cell)}


def test_every_measured_arm_is_compared(tuned: Tuned) -> None:
    """Each with both estimates; with a clock without noise they agree."""
    assert {(c.batch_size, c.config) for c in tuned.comparisons} == latest_arms(tuned)
    for comparison in tuned.comparisons:
        assert comparison.first.num_blocks >= 10
        assert comparison.second.num_blocks == 20
        assert comparison.difference_low < comparison.difference_high
        assert comparison.status == "validated"


def test_the_second_measurement_is_a_run_of_its_own(tuned: Tuned) -> None:
    """Another kind, another seed, its own blocks; nothing is published by it."""
    run = tuned.store.runs()[1]
    rows = tuned.store.measurements(run.run_id)

    assert (run.kind, run.status, run.seed) == ("remeasure", "done", 6)
    assert {row.stage for row in rows} == {"remeasure"}
    for comparison in tuned.comparisons:
        blocks = blocks_of(rows, comparison.batch_size, comparison.config, "remeasure")
        part = comparison.second.request_std_error
        assert paired_estimate(blocks, part) == comparison.second
    assert len(tuned.store.history(tuned.first.scope)) == 2


def test_a_drafter_that_is_gone_is_noted(tuned: Tuned) -> None:
    """Its arms cannot be measured again; the attempt ends well all the same."""
    assert all(comparison.config.drafter != "twin" for comparison in tuned.without_twin)
    notes = "\n".join(tuned.late_notes)
    assert "drafter twin skipped: " in notes
    assert "could not be measured again" in notes


def test_another_device_is_refused(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication can only be checked where it is valid; no run begins."""
    elsewhere = DeviceInfo(kind="cpu", name="Other CPU", memory_bytes=1 << 30, cores=1)
    found = Detection(devices=(elsewhere,), lost=(), chosen=elsewhere, notes=())
    monkeypatch.setattr("autotune.tuning.session.detect", lambda request: found)
    runs = tuned.store.runs()

    with pytest.raises(ConfigError, match="the device is not the one that was published for"):
        remeasure(tuned.store, Silent(), scope=tuned.first.scope)

    assert tuned.store.runs() == runs

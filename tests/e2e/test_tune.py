"""The main job on a tiny checkpoint: record, replay, time, search, validate, decide, publish.

A fake clock makes every step take one second, so that an arm's gain is its tokens per round and
the outcome is the same at every run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import optuna
import pytest

from autotune.device import Detection, DeviceInfo
from autotune.document import CellEvidenceModel, Interval, PublishedConfig
from autotune.errors import ConfigError, TrafficError
from autotune.figures import interval
from autotune.paired import PairedBench
from autotune.progress import Silent
from autotune.remeasure import Comparison, remeasure
from autotune.settings import TuneSettings
from autotune.tune import tune
from engine.errors import EngineError
from policies.estimate import paired_estimate
from policies.types import Block, SpeculativeConfig
from store.records import MeasurementRecord, Publication
from store.repository import Store
from tests.support.checkpoints import A11, H0, changed_copy, disturbed, overflowing
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
            "validate_blocks": 8,
            "window_s": 4.0,
            "dtype": "float32",
            "device": "cpu",
        }
        return TuneSettings.parse(values | changes)

    def tune(self, store: Store, **changes: Any) -> Publication | None:
        """Run the job."""
        return tune(self.settings(**changes), store, self.studies, self.progress)


def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second, and nobody else uses the processors."""
    clock = FakeClock()
    monkeypatch.setattr("autotune.paired.perf_counter", clock)
    monkeypatch.setattr("engine.latency.perf_counter", clock)
    monkeypatch.setattr("autotune.paired.LoadWatch", QuietWatch)


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
            store, drafters={"twin": twin}, layer_skip=(), trials=2, validate_blocks=4, seed=5
        )
        assert first is not None
        assert second is not None
        comparisons = remeasure(store, world.progress, scope=first.scope)
        twin.rename(world.folder / "moved")
        late = Silent()
        without_twin = remeasure(store, late, scope=first.scope)
        yield Tuned(store, world, first, second, notes, comparisons, without_twin, late.notes)


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


def num_recomputed(store: Store, publication: Publication) -> int:
    """Recompute every published figure from the stored blocks; how many there were."""
    document = PublishedConfig.model_validate_json(publication.document)
    rows = store.measurements(publication.run_id)
    count = 0
    for cell in document.evidence:
        for config, published in arms_of(cell):
            blocks = blocks_of(rows, cell.batch_size, config, "validate") or blocks_of(
                rows, cell.batch_size, config, "explore"
            )
            estimate = paired_estimate(blocks, published.request_std_error)
            assert interval(estimate, document.policy.confidence) == published
            count += 1
    return count


def test_every_published_figure_can_be_recomputed(tuned: Tuned) -> None:
    """From the stored blocks, fresh ones where there are any, and the requests' part."""
    assert num_recomputed(tuned.store, tuned.first) >= len(BATCH_SIZES)
    assert num_recomputed(tuned.store, tuned.second) >= len(BATCH_SIZES)


def test_a_real_clock_gives_a_publication_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the noise decides: a document whose figures can be recomputed."""
    monkeypatch.setattr("autotune.paired.LoadWatch", QuietWatch)
    world = World(tmp_path)
    with Store.open(world.location) as store:
        published = world.tune(store, **(SMALL | {"window_s": 0.02, "layer_skip": (1,)}))

        assert published is not None
        document = PublishedConfig.model_validate_json(published.document)
        assert document.to_bytes() == published.document
        assert document.schedule[-1].bs_hi is None
        rows = store.measurements(published.run_id)
        assert all(row.baseline_s >= 2 * 0.02 and row.candidate_s >= 2 * 0.02 for row in rows)
        num_recomputed(store, published)


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


def test_costs_are_stored(tuned: Tuned) -> None:
    """Verify passes, and proposals of every drafter that works."""
    rows = tuned.store.costs(tuned.first.run_id)

    assert {row.kind for row in rows} == {"verify", "draft"}
    assert {row.drafter for row in rows if row.kind == "draft"} == (
        {"ngram", "layer-skip-1", "twin", "close"}
    )
    assert {row.batch_size for row in rows} == set(BATCH_SIZES)


def test_the_search_measured_what_it_was_asked_for(tuned: Tuned) -> None:
    """Trials times blocks at every batch size, each traced to a trial; then fresh blocks."""
    rows = tuned.store.measurements(tuned.first.run_id)

    explored = [row for row in rows if row.stage == "explore"]
    assert Counter(row.batch_size for row in explored) == dict.fromkeys(BATCH_SIZES, 4 * 2)
    assert {row.proposed_by for row in explored} == {"prior", "sampler"}
    assert all(row.trial_number is not None for row in explored)
    fresh = [row for row in rows if row.stage == "validate"]
    assert fresh
    assert {row.proposed_by for row in fresh} == {"validation"}
    assert len(fresh) % 8 == 0


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
        assert comparison.first.num_blocks == comparison.second.num_blocks == 4
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
    monkeypatch.setattr("autotune.session.detect", lambda request: found)
    runs = tuned.store.runs()

    with pytest.raises(ConfigError, match="the device is not the one that was published for"):
        remeasure(tuned.store, Silent(), scope=tuned.first.scope)

    assert tuned.store.runs() == runs


# ---------------------------------------------------------------- when things go wrong


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with a fake machine."""
    fake_machine(monkeypatch)
    return World(tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    """Its store."""
    with Store.open(world.location) as opened:
        yield opened


def test_when_all_trials_fail_the_old_document_stays(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: nothing is published, the reasons are stored, the status is clear."""
    before = world.tune(store, **SMALL)

    def fail(self: PairedBench, *args: object) -> NoReturn:
        raise EngineError("no such luck")

    monkeypatch.setattr(PairedBench, "measure", fail)

    assert world.tune(store, **SMALL) is None

    assert before is not None
    assert store.latest(before.scope) == before
    run = store.runs()[0]
    assert {failure.reason for failure in store.failures(run.run_id)} == {"no such luck"}
    assert store.measurements(run.run_id) == ()
    assert world.progress.notes[-1].startswith("no valid trial: nothing is published")
    assert run.status == "done"


def test_nothing_published_is_nothing_to_measure_again(store: Store) -> None:
    """The message says what to do first; another scope's publication does not count."""
    for scope in (None, "elsewhere"):
        with pytest.raises(ConfigError, match="run `spectune tune` first"):
            remeasure(store, Silent(), scope=scope)


def test_on_a_machine_that_is_never_quiet_nothing_is_published(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disturbed blocks are stored and counted out loud, and decide nothing."""
    monkeypatch.setattr(QuietWatch, "share", 0.5)

    assert world.tune(store, **SMALL) is None

    rows = store.measurements(store.runs()[0].run_id)
    assert rows
    assert all(row.disturbed for row in rows)
    assert f"{len(rows)} blocks do not count" in "\n".join(world.progress.notes)


def test_without_any_drafter_nothing_is_published(world: World, store: Store) -> None:
    """There was nothing to search."""
    assert world.tune(store, ngram=False, layer_skip=()) is None
    assert store.scopes() == ()


def test_a_drafter_that_fails_in_its_trials_does_not_end_the_search(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded with its reason; the other drafter is published or refused on its merits."""
    measure = PairedBench.measure

    def fragile(
        self: PairedBench, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> object:
        if config.drafter == "layer-skip-1":
            raise EngineError("logits hold NaN")
        return measure(self, config, batch_size, stage, index)

    monkeypatch.setattr(PairedBench, "measure", fragile)

    published = world.tune(store, batch_sizes=(2,), trials=6)

    assert published is not None
    run_id = published.run_id
    assert {failure.drafter for failure in store.failures(run_id)} == {"layer-skip-1"}
    assert {row.drafter for row in store.measurements(run_id)} == {"ngram"}


def test_a_batch_size_without_valid_trials_is_published_as_off(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays in the schedule, provisional, and does not hold up the others."""
    measure = PairedBench.measure

    def fragile(
        self: PairedBench, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> object:
        if batch_size == 3:
            raise EngineError("too large")
        return measure(self, config, batch_size, stage, index)

    monkeypatch.setattr(PairedBench, "measure", fragile)

    published = world.tune(store, drafters={"twin": H0})

    assert published is not None
    document = PublishedConfig.model_validate_json(published.document)
    small, large = document.evidence
    assert (small.batch_size, large.batch_size) == BATCH_SIZES
    assert large.num_speculative_tokens == 0
    assert large.status == "provisional"


def test_unusable_traffic_begins_no_run(world: World, store: Store) -> None:
    """What is wrong before the first measurement leaves no trace."""
    write_traffic(world.traffic, [prompt("x" * 400)])

    with pytest.raises(TrafficError):
        world.tune(store)

    assert store.runs() == ()


class Interrupting(Silent):
    """Acts as Ctrl-C in the second trial of the search."""

    def __init__(self) -> None:
        super().__init__()
        self._searching = False
        self._left = 2

    def begin(self, title: str) -> None:
        """Wait for the search."""
        self._searching = title.startswith("Search")

    def update(self, fraction: float, detail: str = "") -> None:
        """Count the trials."""
        if self._searching:
            self._left -= 1
            if not self._left:
                self.strike()

    def strike(self) -> None:
        """Stop it."""
        raise KeyboardInterrupt


def test_an_interrupted_search_keeps_what_it_measured(world: World, store: Store) -> None:
    """Ctrl-C: the run ends as interrupted, its blocks stay, nothing is published."""
    with pytest.raises(KeyboardInterrupt):
        tune(world.settings(), store, world.studies, Interrupting())

    (run,) = store.runs()
    assert (run.status, run.reason) == ("interrupted", "stopped from outside")
    assert len(store.measurements(run.run_id)) == 2
    assert store.acceptance(run.run_id)
    assert store.scopes() == ()


class Dying(Interrupting):
    """Acts as kill -9 there."""

    def strike(self) -> None:
        """No goodbye."""
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_search_is_marked_by_the_next(world: World) -> None:
    """D3: the store stays readable, the next run marks the lost one and goes on as usual."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.e2e.test_tune", str(world.folder)],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr

    with Store.open(world.location) as store:
        (lost,) = store.runs()
        assert lost.status == "running"
        kept = store.measurements(lost.run_id)
        assert len(kept) == 2

        published = world.tune(store, **SMALL)

        assert published is not None
        assert published.generation == 1
        lost = store.run(lost.run_id)
        assert (lost.status, lost.reason) == ("interrupted", "the process that ran it is gone")
        assert store.measurements(lost.run_id) == kept


def be_killed(folder: Path) -> None:
    """Search in this process until it dies."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_machine(monkeypatch)
        world = World(folder)
        with Store.open(world.location) as opened:
            tune(world.settings(), opened, world.studies, Dying())


if __name__ == "__main__":
    be_killed(Path(sys.argv[1]))

"""The main job when things go wrong: failing trials, bad input, signals, a busy machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from autotune.document import PublishedConfig
from autotune.errors import ConfigError, TrafficError
from autotune.progress import Silent
from autotune.tuning.paired import PairedBench
from autotune.tuning.remeasure import remeasure
from autotune.tuning.tune import tune
from engine.errors import EngineError
from policies.types import SpeculativeConfig
from store.repository import Store
from tests.support.checkpoints import H0
from tests.support.sessions import QuietWatch
from tests.support.traffic import prompt, write_traffic
from tests.support.tuning import BATCH_SIZES, SMALL, World, fake_machine, num_recomputed


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


def test_a_real_clock_gives_a_publication_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the noise decides: a document whose figures can be recomputed."""
    monkeypatch.setattr("autotune.tuning.paired.LoadWatch", QuietWatch)
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


def test_a_document_of_another_version_is_no_incumbent(world: World, store: Store) -> None:
    """What cannot be read is told and not measured; the search goes on."""
    before = world.tune(store, **SMALL)
    assert before is not None
    store.publish(before.scope, before.run_id, lambda slot: b"{}")

    after = world.tune(store, **SMALL)

    assert after is not None
    assert after.generation == 3
    assert any("written by another version" in note for note in world.progress.notes)


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
    assert world.tune(store, ngram=False, **SMALL) is None
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

    published = world.tune(store, batch_sizes=(2,), trials=4)

    assert published is not None
    run_id = published.run_id
    assert {failure.drafter for failure in store.failures(run_id)} == {"layer-skip-1"}
    assert {row.drafter for row in store.measurements(run_id)} == {"ngram"}


def test_a_drafter_that_fails_at_one_batch_size_is_published_at_none(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best drafter by far works at batch 1 and fails at 3: the next one is published.

    A server that has it in memory would fail as soon as there are three requests.
    """
    measure = PairedBench.measure

    def fragile(
        self: PairedBench, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> object:
        if config.drafter == "twin" and batch_size == 3:
            raise EngineError("too large")
        return measure(self, config, batch_size, stage, index)

    monkeypatch.setattr(PairedBench, "measure", fragile)

    published = world.tune(store, drafters={"twin": H0}, layer_skip=())

    assert published is not None
    document = PublishedConfig.model_validate_json(published.document)
    assert document.envelope.drafter != "twin"
    assert all(cell.drafter != "twin" for cell in document.evidence)
    assert [cell.batch_size for cell in document.evidence] == list(BATCH_SIZES)
    assert {failure.drafter for failure in store.failures(published.run_id)} == {"twin"}


def test_a_budget_that_shows_nothing_is_published_as_off(world: World, store: Store) -> None:
    """Two fresh blocks bound no gain; what was seen is in the document, and can be read."""
    published = world.tune(store, drafters={"twin": H0}, **(SMALL | {"validate_blocks": 2}))

    assert published is not None
    document = PublishedConfig.model_validate_json(published.document)
    assert document.to_bytes() == published.document
    assert document.envelope.drafter == "off"
    (cell,) = document.evidence
    assert cell.status == "provisional"
    assert cell.best_candidate_measured is not None
    assert cell.best_candidate_measured.num_blocks == 2
    assert num_recomputed(store, published) == 1


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
        [sys.executable, "-m", "tests.e2e.test_tune_failures", str(world.folder)],
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

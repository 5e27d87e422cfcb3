"""`spectune studies`; that rebuilt studies equal the live ones is tested with a whole search."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import optuna
import pytest

from autotune.cli import exits
from store.repository import Store
from tests.contract.store_samples import NOON, make_run
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run


@pytest.fixture
def searched(fill: Fill, store_path: Path) -> None:
    """A store with a search that has ended."""
    fill()
    with Store.open(store_path) as store:
        store.finish_run(samples.RUN_ID, "done", None, NOON)


def test_a_store_without_searches(run: Run, store_path: Path) -> None:
    """There is nothing to rebuild, and no file is made."""
    Store.open(store_path).close()
    assert run("studies", "rebuild").stdout == "the store holds no search: nothing to rebuild\n"
    assert json.loads(run("studies", "rebuild", "--json").stdout) == []
    assert not (store_path.parent / "studies.db").exists()


def test_no_store(run: Run, store_path: Path) -> None:
    """One line, and no store is made."""
    result = run("studies", "rebuild")
    assert result.exit_code == exits.BAD_INPUT
    assert result.stderr.count("\n") == 1
    assert not store_path.exists()


def test_unknown_run(run: Run, fill: Fill) -> None:
    """The line names the run."""
    fill()
    unknown = "00000000-0000-4000-8000-000000000000"
    result = run("studies", "rebuild", "--run", unknown)
    assert result.exit_code == exits.BAD_INPUT
    assert unknown in result.stderr


@pytest.mark.usefixtures("searched")
def test_rebuild(run: Run, store_path: Path) -> None:
    """A study for each batch size of the search, whatever lay there before."""
    path = store_path.parent / "studies.db"
    path.write_text("damaged")

    studies = json.loads(run("studies", "rebuild", "--json").stdout)

    names = [study["study"] for study in studies]
    assert sorted(names) == sorted(optuna.get_all_study_names(f"sqlite:///{path}"))
    assert {name.split("/")[0] for name in names} == {samples.RUN_ID}
    assert sum(study["num_trials"] for study in studies) >= 5
    assert run("studies", "rebuild").stdout.startswith(f"{path}: {len(names)} studies with ")
    assert [one.name for one in path.parent.iterdir() if one.suffix == ".new"] == []


@pytest.mark.usefixtures("searched")
def test_a_running_search_is_left_alone(run: Run, store_path: Path) -> None:
    """Its studies are being written; one whose process is gone is no reason to wait."""
    path = store_path.parent / "studies.db"
    alive = make_run(kind="tune")
    with Store.open(store_path) as store:
        store.begin_run(alive)

    refused = run("studies", "rebuild")

    assert refused.exit_code == exits.BAD_INPUT
    assert f"run {alive.run_id} is at work" in refused.stderr
    assert not path.exists()
    with sqlite3.connect(store_path) as connection:
        connection.execute("UPDATE runs SET owner = 'other:1:2' WHERE run_id = ?", (alive.run_id,))
    connection.close()
    assert "is at work" not in run("studies", "rebuild").stderr


@pytest.mark.usefixtures("searched")
def test_settings_of_another_version(run: Run, store_path: Path) -> None:
    """The line names the run and the setting, and how to rebuild the others."""
    other = make_run(kind="tune", settings={"batch_sizes": [1], "no_such_setting": 1})
    with Store.open(store_path) as store:
        store.begin_run(other)
        store.finish_run(other.run_id, "done", None, NOON)

    refused = run("studies", "rebuild")

    assert refused.exit_code == exits.BAD_INPUT
    assert other.run_id in refused.stderr
    assert "no_such_setting" in refused.stderr
    assert run("studies", "rebuild", "--run", samples.RUN_ID).exit_code == 0

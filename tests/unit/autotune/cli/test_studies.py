"""`spectune studies`; that rebuilt studies equal the live ones is tested with a whole search."""

from __future__ import annotations

import json
from pathlib import Path

import optuna

from autotune.cli import exits
from store.repository import Store
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run


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


def test_rebuild(run: Run, fill: Fill, store_path: Path) -> None:
    """A study for each batch size of the search, whatever lay there before."""
    fill()
    path = store_path.parent / "studies.db"
    path.write_text("damaged")

    studies = json.loads(run("studies", "rebuild", "--json").stdout)

    names = [study["study"] for study in studies]
    assert sorted(names) == sorted(optuna.get_all_study_names(f"sqlite:///{path}"))
    assert {name.split("/")[0] for name in names} == {samples.RUN_ID}
    assert sum(study["num_trials"] for study in studies) >= 5
    assert run("studies", "rebuild").stdout.startswith(f"{path}: {len(names)} studies with ")
    assert [one.name for one in path.parent.iterdir() if one.suffix == ".new"] == []

"""How `spectune` reports what goes wrong: one line on stderr and an exit code."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from autotune.cli import exits
from autotune.cli.root import COMMANDS, Root, spectune
from autotune.errors import TrafficError
from engine.errors import WeightsError
from store.errors import StoreBusyError
from store.repository import Store
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run

ROOT = Path(__file__).parents[4]
INSPECTING = [["show"], ["acceptance"], ["explain", "1"], ["export"], ["history"]]


@pytest.mark.parametrize("arguments", INSPECTING)
def test_nothing_published(run: Run, store_path: Path, arguments: list[str]) -> None:
    """Before the first search: one line with the remedy, its own exit code, no store created."""
    result = run(*arguments)
    assert result.exit_code == exits.NOTHING_PUBLISHED
    assert result.stderr == (
        f"spectune: nothing is published in {store_path}: run `spectune tune`, or name another "
        "store with --store\n"
    )
    assert result.stdout == ""
    assert not store_path.exists()


@pytest.mark.parametrize("arguments", INSPECTING)
@pytest.mark.parametrize("exists", [False, True])
def test_nothing_published_as_json(
    run: Run, store_path: Path, arguments: list[str], exists: bool
) -> None:
    """The empty answer is defined: `null`, or an empty list (bug report I10)."""
    if exists:
        Store.open(store_path).close()
    result = run(*arguments, "--json")
    assert result.exit_code == exits.NOTHING_PUBLISHED
    assert json.loads(result.stdout) == ([] if arguments == ["history"] else None)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [*INSPECTING, ["store", "migrate"]])
def test_damaged_store(run: Run, store_path: Path, arguments: list[str]) -> None:
    """A damaged file is told in one line with the remedy, and left as it is (bug report F12)."""
    damaged = (ROOT / "tests/data/F12_malformed.db").read_bytes()
    store_path.parent.mkdir()
    store_path.write_bytes(damaged)
    result = run(*arguments)
    assert result.exit_code == exits.BAD_INPUT
    assert "damaged" in result.stderr
    assert "restore it" in result.stderr
    assert result.stderr.count("\n") == 1
    assert store_path.read_bytes() == damaged


def test_store_option_wins_over_the_environment(run: Run, fill: Fill, tmp_path: Path) -> None:
    """`--store` takes a path or a URL."""
    fill()
    other = tmp_path / "other.db"
    samples.fill(other, samples.OFF_ENVELOPE).close()
    for location in (str(other), f"sqlite:///{other}"):
        assert "no drafter (speculation off)" in run("--store", location, "show").stdout


def test_store_of_another_kind(run: Run) -> None:
    """A URL that names no file is refused, its password unsaid (bug report F7)."""
    result = run("--store", "postgresql://tuner:secret@db.example/tuner", "show")
    assert result.exit_code == exits.BAD_INPUT
    assert result.stderr == (
        "spectune: a postgresql store is not supported: give a path or sqlite:///PATH\n"
    )


def test_document_of_another_version(run: Run, fill: Fill, store_path: Path) -> None:
    """What this version cannot read is said, and `show --json` still gives the bytes."""
    fill()
    with Store.open(store_path) as repo:
        repo.publish(samples.SCOPE, samples.RUN_ID, lambda slot: b'{"identity": {}, "new": 1}')
    result = run("show")
    assert result.exit_code == exits.BAD_INPUT
    assert "generation 2 of" in result.stderr
    assert "was written by another version" in result.stderr
    assert result.stderr.count("\n") == 1
    assert run("show", "--json").stdout == '{"identity": {}, "new": 1}'


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["shwo"], "spectune: No such command 'shwo'. (see spectune --help)\n"),
        (["store", "x"], "spectune store: No such command 'x'. (see spectune store --help)\n"),
        (
            ["explain"],
            "spectune explain: Missing argument 'BATCH'. (see spectune explain --help)\n",
        ),
    ],
)
def test_usage_errors(run: Run, arguments: list[str], line: str) -> None:
    """One line that names the command and where help is."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (exits.BAD_INPUT, line)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (TrafficError("a.jsonl: no\nrequest"), 2, "spectune: a.jsonl: no request\n"),
        (WeightsError("model: tensor\nmissing"), 2, "spectune: model: tensor missing\n"),
        (StoreBusyError("a.db is locked"), 2, "spectune: a.db is locked\n"),
        (click.ClickException("no"), 1, "spectune: no\n"),
        (KeyboardInterrupt(), 130, "spectune: interrupted\n"),
    ],
)
def test_expected_errors_are_one_line(error: BaseException, code: int, line: str) -> None:
    """The three error trees and Ctrl-C end in one line each, whatever breaks their text."""

    class Failing(Root):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            def fail() -> None:
                raise error

            return click.Command(cmd_name, callback=fail)

    result = CliRunner().invoke(Failing("spectune"), ["tune"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


def test_unexpected_errors_keep_their_traceback() -> None:
    """A fault of the program is not dressed up as bad input."""

    class Faulty(Root):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            return click.Command(cmd_name, callback=lambda: [][0])

    result = CliRunner().invoke(Faulty("spectune"), ["tune"])
    assert isinstance(result.exception, IndexError)


def test_version(run: Run) -> None:
    """The version is that of pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("--version").stdout == f"spectune {version}\n"


def test_without_arguments(run: Run) -> None:
    """No command: the help, on stderr, as for every other usage error."""
    result = run()
    assert result.exit_code == exits.BAD_INPUT
    assert "Usage: spectune" in result.stderr


def test_help_lists_every_command(run: Run) -> None:
    """The help names all commands, tells the exit codes and how completion is set up."""
    text = run("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "..." not in text.split("Commands:")[1]
    assert "_SPECTUNE_COMPLETE=bash_source" in text
    assert "Exit codes:" in text


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click's own completion works through the entry point's name."""
    monkeypatch.setenv("_SPECTUNE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "spectune exp")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert CliRunner().invoke(spectune, []).stdout.split() == ["plain,explain", "plain,export"]


def test_reader_that_goes_away_is_no_fault(fill: Fill) -> None:
    """`spectune show --json | head -c1`: quiet, whichever write finds the pipe closed."""
    fill()
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", "show", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    assert process.returncode == exits.UNEXPECTED


def test_store_migrate(run: Run, fill: Fill, store_path: Path) -> None:
    """An older store is brought up to date once; a new one is left alone."""
    fill()
    assert run("store", "migrate").stdout == f"{store_path} is up to date\n"
    _make_older(store_path)
    refused = run("show")
    assert refused.exit_code == exits.BAD_INPUT
    assert "run `spectune store migrate`" in refused.stderr
    assert run("store", "migrate").stdout == f"{store_path} was migrated\n"
    assert run("store", "migrate").stdout == f"{store_path} is up to date\n"


def test_store_migrate_makes_no_store(run: Run, store_path: Path) -> None:
    """A mistyped path is an error, not a new store."""
    result = run("store", "migrate")
    assert result.exit_code == exits.BAD_INPUT
    assert "does not exist" in result.stderr
    assert not store_path.exists()


def _make_older(path: Path) -> None:
    """Take the newest revision back."""
    from store.schema import REVISIONS, move_to
    from store.session import Database

    database = Database(path, read_only=False)
    with database.writing() as session:
        move_to(session.connection(), REVISIONS[-2])
    database.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM spectuned_version").fetchone()
    connection.close()

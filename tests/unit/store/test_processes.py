"""Several processes on one store, and processes that are killed in the middle of their work."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from store.repository import Store
from store.schema import move_to
from store.session import Database
from tests.contract.store_samples import NOON, make_run
from tests.unit.store.child import render

ROOT = Path(__file__).parents[3]


class Child:
    """A running `tests.unit.store.child`; killed at the end if it has not ended by then."""

    def __init__(self, command: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.store.child", command, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self.read() == "ready"

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def go(self) -> "Child":
        """Let it begin, or go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def read(self) -> str:
        """The next line it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def kill(self) -> list[str]:
        """Kill it with no chance to clean up; returns what it had said and was not read yet."""
        self._process.kill()
        return self._process.communicate()[0].splitlines()

    def end(self) -> tuple[int, list[str], str]:
        """Wait for its end: exit code, lines that were not read yet, standard error."""
        out, err = self._process.communicate(timeout=30)
        return self._process.returncode, out.splitlines(), err


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "store.db"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can look into; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def begin(path: Path) -> str:
    """A store with a run and one publication; returns the run's id."""
    run = make_run()
    with Store.open(path) as store:
        store.begin_run(run)
        store.publish("scope", run.run_id, render)
    return run.run_id


def check_history(path: Path) -> list[tuple[int, str]]:
    """Generations and digests, oldest first, after checking that nothing is torn."""
    with Store.open(path) as store:  # Opening checks the file, reading checks each digest.
        history = store.history("scope", limit=1000)[::-1]
    assert [item.generation for item in history] == list(range(1, len(history) + 1))
    for item in history:
        assert item.document == f"{item.epoch} {item.generation}\n".encode() * 500
    return [(item.generation, item.sha256) for item in history]


def run_together(*children: Child) -> list[list[str]]:
    """Let all begin at once and return what each said; each must end well and silently."""
    for child in children:
        child.go()
    ends = [child.end() for child in children]
    assert [(code, err) for code, _, err in ends] == [(0, "")] * len(children)
    return [lines for _, lines, _ in ends]


def test_three_processes_create_one_store(path: Path) -> None:
    """All come up on a fresh file, with one epoch among them (D1)."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child("open_store", path)) for _ in range(3)]
        assert run_together(*children) == [["open 0"]] * 3
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM store_identity").fetchone() == (1,)
    connection.close()


def test_two_processes_migrate_one_store(path: Path) -> None:
    """One migrates while the other waits; both come up (F6)."""
    begin(path)
    database = Database(path, read_only=False)
    with database.writing() as session:
        move_to(session.connection(), "0001")
    database.close()
    with Child("open_store", path) as one, Child("open_store", path) as two:
        assert run_together(one, two) == [["open 0"]] * 2
    with Store.open(path, migrate=False) as store:
        assert len(store.runs()) == 1


def test_two_processes_publish(path: Path) -> None:
    """Generations are unique and without gaps, and each publisher's own grow."""
    run_id = begin(path)
    with Child("publish", path, run_id, 20) as one, Child("publish", path, run_id, 20) as two:
        said = run_together(one, two)
    theirs = [[int(line.split()[0]) for line in lines] for lines in said]
    assert sorted(theirs[0] + theirs[1]) == list(range(2, 42))
    assert theirs == [sorted(theirs[0]), sorted(theirs[1])]
    assert len(check_history(path)) == 41


@pytest.mark.parametrize(
    ("point", "generations"),
    [("in_render", 1), ("after_flush", 1), ("before_commit", 1), ("after_commit", 2)],
)
def test_kill_during_a_publication(path: Path, point: str, generations: int) -> None:
    """Before the commit nothing has happened, after it everything has; work goes on."""
    run_id = begin(path)
    with Child("publish_and_die", path, run_id, point) as child:
        code, _, _ = child.go().end()
    assert code == -signal.SIGKILL
    assert len(check_history(path)) == generations
    with Store.open(path) as store:
        assert store.publish("scope", run_id, render).generation == generations + 1


def test_kill_at_any_moment(path: Path) -> None:
    """Whatever was reported as published is there, and nothing is torn."""
    run_id = begin(path)
    for lines_before_kill in (1, 4, 9):
        with Child("publish", path, run_id, 1000) as child:
            child.go()
            said = [child.read() for _ in range(lines_before_kill)] + child.kill()
        reported = {(int(line.split()[0]), line.split()[1]) for line in said if line.count(" ")}
        stored = check_history(path)
        assert reported <= set(stored)
        # At most the one in flight was committed without being reported.
        assert stored[-1][0] - max(generation for generation, _ in reported) <= 1


@pytest.mark.parametrize(("point", "started"), [("before_commit", False), ("after_commit", True)])
def test_kill_while_tables_are_created(path: Path, point: str, started: bool) -> None:
    """A store is created whole or not at all, and the next process brings it up."""
    with Child("open_and_die", path, point) as child:
        code, _, _ = child.go().end()
    assert code == -signal.SIGKILL
    with sqlite3.connect(path) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.close()
    assert bool(tables) == started
    begin(path)
    assert len(check_history(path)) == 1


def test_run_of_a_killed_process_is_interrupted(path: Path) -> None:
    """After kill -9 and a restart the run is no longer running (D3)."""
    begin(path)
    with Child("open_store", path) as child:
        with sqlite3.connect(path) as connection:
            connection.execute(
                "UPDATE runs SET owner = replace(owner, ?, ?)",
                (
                    f":{os.getpid()}:{_start_of(os.getpid())}",
                    f":{child.pid}:{_start_of(child.pid)}",
                ),
            )
        connection.close()
        with Store.open(path) as store:
            assert store.interrupt_stale_runs(NOON) == ()
            child.kill()
            (interrupted,) = store.interrupt_stale_runs(NOON)
            assert store.run(interrupted).status == "interrupted"


def test_reader_without_write_permission(open_folder: Path) -> None:
    """A read-only folder can be read; writing says what is missing (F11)."""
    path = open_folder / "store.db"
    begin(path)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    with Child("read_as_nobody", path) as child:
        code, lines, err = child.go().end()
    assert (code, err) == (0, "")
    assert lines[0] == "read 1"
    assert lines[1].startswith(f"StoreReadOnlyError {path} cannot be written by this account")
    assert os.listdir(open_folder) == ["store.db"]


def test_plain_reader_without_write_permission(open_folder: Path) -> None:
    """What cannot be read plainly there is read through the store (F11)."""
    path = open_folder / "store.db"
    begin(path)
    open_folder.chmod(0o555)
    with Child("read_plainly_as_nobody", path) as child:
        assert child.go().end() == (0, ["read 1"], "")


def test_reader_without_write_permission_beside_a_writer(open_folder: Path) -> None:
    """With a writer at work, what it committed last is read from its log (F11)."""
    path = open_folder / "store.db"
    run_id = begin(path)
    with Store.open(path) as store:
        store.publish("scope", run_id, render)
        open_folder.chmod(0o555)
        with Child("read_as_nobody", path) as child:
            _, lines, _ = child.go().end()
    assert lines[0] == "read 2"


def test_reader_without_write_permission_after_a_crash(open_folder: Path) -> None:
    """A log that must be recovered first is reported, with the remedy (F11)."""
    path = open_folder / "store.db"
    run_id = begin(path)
    with Child("publish_and_die", path, run_id, "after_commit") as child:
        child.go().end()
    Path(f"{path}-shm").unlink()
    open_folder.chmod(0o555)
    with Child("read_as_nobody", path) as child:
        _, lines, _ = child.go().end()
    assert lines[0].startswith(f"StoreUnavailableError {path} was not closed cleanly")
    assert f"may not write to {open_folder}" in lines[0]


def test_reader_of_a_frozen_file_notices_a_writer(open_folder: Path) -> None:
    """A file that is read without locks and changes meanwhile gives an error, not a mixture."""
    path = open_folder / "store.db"
    run_id = begin(path)
    open_folder.chmod(0o555)
    with Child("read_slowly_as_nobody", path) as child:
        assert child.go().read() == "reading"
        open_folder.chmod(0o755)
        with Store.open(path) as store:
            store.publish("scope", run_id, render)
        _, lines, _ = child.go().end()
    assert lines == [f"StoreBusyError {path} was changed while it was read: try again"]


def _start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]

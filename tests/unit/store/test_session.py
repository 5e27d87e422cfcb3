"""Tests of store.session: transactions, locks, and errors of the driver."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import (
    ConflictError,
    StoreBusyError,
    StoreCorruptError,
    StoreNotFoundError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from store.records import PublicationSlot
from store.repository import Store
from store.session import Database
from tests.contract.store_samples import NOON, make_measurement, make_run

MALFORMED = Path(__file__).parents[2] / "data" / "F12_malformed.db"


def render(slot: PublicationSlot) -> bytes:
    """Any document."""
    return b"document"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "store.db"


@pytest.fixture
def run_id(path: Path) -> str:
    """A run in a store that has one publication and one measurement."""
    run = make_run()
    with Store.open(path) as store:
        store.begin_run(run)
        store.add_measurement(make_measurement(run.run_id))
        store.publish("scope", run.run_id, render)
    return run.run_id


@pytest.fixture
def raw(path: Path, run_id: str) -> Iterator[sqlite3.Connection]:
    """A connection of someone who knows nothing of our rules."""
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_connection_settings(path: Path, run_id: str) -> None:
    """Write-ahead log, foreign keys and full durability hold on every connection."""
    database = Database(path, read_only=False)
    with database.writing() as session:
        found = {
            name: session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    database.close()
    assert found == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "synchronous": 2,
        "busy_timeout": 10_000,
    }


def test_writer_holds_the_lock_from_the_start(path: Path, run_id: str) -> None:
    """A second writer is told that the store is busy, before it has done anything."""
    with (
        Store.open(path) as first,
        Store.open(path, busy_timeout_s=0.05) as second,
    ):

        def publish_too(slot: PublicationSlot) -> bytes:
            with pytest.raises(StoreBusyError, match=r"locked by another process for over 0\.05 s"):
                second.publish("scope", run_id, render)
            return b"first"

        assert first.publish("scope", run_id, publish_too).generation == 2
        assert second.publish("scope", run_id, render).generation == 3


def test_opening_waits_for_a_writer(path: Path) -> None:
    """A new file that another process is writing to opens once that process is done (D1)."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
    release.start()
    Store.open(path).close()
    release.join()
    other.close()


def test_opening_gives_up_on_a_writer(path: Path) -> None:
    """A file that stays locked is reported as busy."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError, match="locked by another process"):
        Store.open(path, busy_timeout_s=0.05)
    other.close()


def test_reader_is_not_blocked_by_a_writer(path: Path, run_id: str) -> None:
    """While a writer is at work, readers see the state before it."""
    with Store.open(path) as store, Store.open(path, read_only=True) as reader:

        def look(slot: PublicationSlot) -> bytes:
            assert [item.generation for item in reader.history("scope")] == [1]
            assert [item.generation for item in store.history("scope")] == [1]
            return b"second"

        store.publish("scope", run_id, look)
        assert [item.generation for item in reader.history("scope")] == [2, 1]


def test_reading_sees_one_state(path: Path, run_id: str) -> None:
    """Within one reading transaction nothing changes."""
    count = "SELECT count(*) FROM publications"
    database = Database(path, read_only=True)
    with Store.open(path) as store, database.reading() as session:
        before = session.connection().exec_driver_sql(count).scalar()
        store.publish("scope", run_id, render)
        assert session.connection().exec_driver_sql(count).scalar() == before
    database.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_malformed_file_is_reported_and_left_alone(path: Path, read_only: bool) -> None:
    """One clear line with the remedy; not a byte changes and no file appears (F12)."""
    content = MALFORMED.read_bytes()
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError) as caught:
        Store.open(path, read_only=read_only)
    assert str(path) in str(caught.value)
    assert "restore it from a backup" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("read_only", [True, False])
def test_other_file_is_reported_and_left_alone(path: Path, read_only: bool) -> None:
    """A file that is no database at all is treated the same way."""
    path.write_text("drafter = ngram\n" * 100)
    with pytest.raises(StoreCorruptError, match="is damaged or not an SQLite database"):
        Store.open(path, read_only=read_only)
    assert path.read_text() == "drafter = ngram\n" * 100


def test_page_that_went_bad_later_is_reported(path: Path, run_id: str) -> None:
    """A damaged page of a store that opened well is found by whoever opens it to write."""
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        Store.open(path)
    assert path.read_bytes() == bytes(content)


def test_document_that_changed_is_reported(path: Path, raw: sqlite3.Connection) -> None:
    """Bytes that no longer match their digest are never handed out."""
    raw.execute("DROP TRIGGER publications_no_update")
    raw.execute("UPDATE publications SET document = x'00'")
    raw.commit()
    with (
        Store.open(path) as store,
        pytest.raises(StoreCorruptError, match="generation 1 of scope does not match its digest"),
    ):
        store.latest("scope")


def test_reader_of_nothing(path: Path) -> None:
    """A store that was never written is told apart from an empty one; no file appears."""
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        Store.open(path, read_only=True)
    assert not path.exists()
    path.touch()
    with pytest.raises(StoreNotFoundError, match="is empty"):
        Store.open(path, read_only=True)
    assert path.read_bytes() == b""


def test_reader_cannot_write(path: Path, run_id: str) -> None:
    """A store opened for reading refuses every writer by itself."""
    with Store.open(path, read_only=True) as store:
        with pytest.raises(StoreReadOnlyError, match="opened for reading only"):
            store.publish("scope", run_id, render)
        with pytest.raises(StoreReadOnlyError, match="opened for reading only"):
            store.finish_run(run_id, "done", None, NOON)


def test_folders_are_created(tmp_path: Path) -> None:
    """The folders above a new store are made with it."""
    path = tmp_path / "a" / "b" / "store.db"
    Store.open(path).close()
    assert path.exists()


def test_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    """A path that leads through a file cannot hold a store."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be opened for writing"):
        Store.open(tmp_path / "file" / "store.db")


def test_odd_file_names(tmp_path: Path) -> None:
    """Characters with a meaning in URLs are part of the name."""
    path = tmp_path / "a?mode=ro&b#c%41 d.db"
    Store.open(path).close()
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    Store.open(path, read_only=True).close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE publications SET document = x'00'",
        "UPDATE publications SET generation = 7",
        "DELETE FROM publications",
        "INSERT OR REPLACE INTO publications "
        "SELECT id, scope, epoch, 2, run_id, created_at, x'00', sha256 FROM publications",
        "INSERT OR REPLACE INTO publications "
        "SELECT id + 1, scope, epoch, generation, run_id, created_at, x'00', sha256 "
        "FROM publications",
        "INSERT INTO publications "
        "SELECT id + 1, scope, epoch, 3, run_id, created_at, x'00', sha256 FROM publications",
        "INSERT INTO publications "
        "SELECT id + 1, 'new', epoch, 2, run_id, created_at, x'00', sha256 FROM publications",
        "UPDATE measurements SET candidate_tokens = 1000000",
        "DELETE FROM measurements",
        "INSERT OR REPLACE INTO measurements SELECT * FROM measurements",
    ],
)
def test_history_cannot_be_rewritten(raw: sqlite3.Connection, statement: str) -> None:
    """The database itself refuses to change, delete, replace or reorder what was stored."""
    before = [
        raw.execute(f"SELECT * FROM {t}").fetchall() for t in ("publications", "measurements")
    ]
    with pytest.raises(sqlite3.IntegrityError, match=r"never changed|without gaps"):
        raw.execute(statement)
    after = [raw.execute(f"SELECT * FROM {t}").fetchall() for t in ("publications", "measurements")]
    assert after == before


def test_constraints_of_the_database_are_conflicts(path: Path, run_id: str) -> None:
    """A rule that the database enforces comes up as a conflict, without values in its text."""
    database = Database(path, read_only=False)
    with (
        pytest.raises(ConflictError, match="never changed or deleted") as caught,
        database.writing() as session,
    ):
        session.connection().exec_driver_sql("UPDATE publications SET sha256 = ?", ("secret",))
    database.close()
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def test_statement_that_fails_otherwise(path: Path, run_id: str) -> None:
    """An error of the driver without a class of its own still names the file and the cause."""
    database = Database(path, read_only=True)
    with (
        pytest.raises(StoreUnavailableError, match=r"store\.db cannot be used: no such table: x"),
        database.reading() as session,
    ):
        session.connection().exec_driver_sql("SELECT * FROM x")
    database.close()

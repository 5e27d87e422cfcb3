"""The reader without a database layer gives what the store gives."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from store import reader
from store.errors import (
    SchemaOutdatedError,
    StoreCorruptError,
    StoreLocationError,
    StoreNotFoundError,
)
from store.records import PublicationSlot
from store.repository import Store
from store.schema import HEAD, REVISIONS, VERSION_TABLE, move_to
from store.session import Database
from store.tables import PublicationRow
from tests.contract.store_samples import make_run

ROOT = Path(__file__).parents[3]


def render(slot: PublicationSlot) -> bytes:
    """A document that tells its place, in bytes that are no text."""
    return f"{slot.generation} ".encode() + bytes(range(256))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three generations in two scopes; its name needs quoting in a URL."""
    path = tmp_path / "a store?.db"
    with Store.open(path) as repo:
        run = make_run()
        repo.begin_run(run)
        for scope in ("a", "b", "a"):
            repo.publish(scope, run.run_id, render)
    return path


@pytest.mark.parametrize("limit", [1, 2, 100, -1])
def test_same_answer_as_the_store(path: Path, limit: int) -> None:
    """Every field of every publication, in the same order."""
    with Store.open(path, read_only=True) as repo:
        assert reader.newest(path, limit) == repo.newest(limit)
    assert [p.generation for p in reader.newest(path, -1)] == [2, 1, 1]


def test_names_are_those_of_the_tables() -> None:
    """The queries are written by hand: table, columns and revision follow the store's own."""
    columns = [name for name in PublicationRow.__table__.columns.keys() if name != "id"]
    table = PublicationRow.__tablename__
    assert f"SELECT {', '.join(columns)} FROM {table} " in reader.PUBLICATIONS_QUERY
    assert reader.VERSION_QUERY == f"SELECT version_num FROM {VERSION_TABLE}"
    assert reader.REVISION == HEAD


def test_plain_case_needs_no_database_layer(path: Path) -> None:
    """A current store is read with the standard library alone."""
    code = (
        "import sys; from store import reader; "
        f"print(len(reader.newest({str(path)!r}, -1)), 'sqlalchemy' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "3 False\n"


def test_url(path: Path, tmp_path: Path) -> None:
    """A URL names the same file as a path."""
    plain = tmp_path / "plain.db"
    path.rename(plain)
    assert reader.newest(f"sqlite:///{plain}") == reader.newest(plain)
    assert len(reader.newest(plain)) == 1


def test_store_without_publications(tmp_path: Path) -> None:
    """Nothing published is an empty answer."""
    Store.open(tmp_path / "new.db").close()
    assert reader.newest(tmp_path / "new.db") == ()


def test_writer_at_work_does_not_disturb(path: Path) -> None:
    """A read in the middle of a publication sees the state before it."""
    with Store.open(path) as repo:
        run = make_run()
        repo.begin_run(run)
        seen: list[int] = []

        def look(slot: PublicationSlot) -> bytes:
            seen.append(len(reader.newest(path, -1)))
            return render(slot)

        repo.publish("a", run.run_id, look)
    assert seen == [3]
    assert len(reader.newest(path, -1)) == 4


def test_missing_file(tmp_path: Path) -> None:
    """The store's own words, and no file is made."""
    with pytest.raises(StoreNotFoundError, match=r"none\.db does not exist"):
        reader.newest(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_other_problems_are_the_stores(path: Path, tmp_path: Path) -> None:
    """Damage, folders, and what lies on a network are refused as the store refuses them."""
    with pytest.raises(StoreLocationError, match="is a folder"):
        reader.newest(tmp_path)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"host:/x {tmp_path} nfs rw 0 0\n")
    with pytest.raises(StoreLocationError, match="network file system"):
        reader.newest(path, mounts=mounts)
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at" * 9)
    with pytest.raises(StoreCorruptError, match="damaged"):
        reader.newest(tmp_path / "text.db")


def test_older_store(path: Path) -> None:
    """Tables of an older revision are not read."""
    database = Database(path, read_only=False)
    with database.writing() as session:
        move_to(session.connection(), REVISIONS[-2])
    database.close()
    with pytest.raises(SchemaOutdatedError, match="spectune store migrate"):
        reader.newest(path)


def test_changed_document_is_found_out(path: Path) -> None:
    """Bytes that do not fit their digest are never given out."""
    connection = sqlite3.connect(f"file:{quote(str(path))}", uri=True)
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("UPDATE publications SET document = x'00'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreCorruptError, match="does not match its digest"):
        reader.newest(path)

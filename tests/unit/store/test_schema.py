"""Tests of store.schema and the migrations: older, newer and foreign databases."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from store.errors import ForeignDatabaseError, SchemaOutdatedError, SchemaTooNewError
from store.records import PublicationSlot
from store.repository import Store
from store.schema import BARE, HEAD, REVISIONS, VERSION_TABLE, move_to
from store.session import Database
from store.tables import Base
from tests.contract.store_samples import make_measurement, make_run


def render(slot: PublicationSlot) -> bytes:
    """Any document."""
    return b"document"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "store.db"


def move(path: Path, revision: str) -> list[str]:
    """Migrate a store up or down; returns the tables it has then."""
    database = Database(path, read_only=False)
    with database.writing() as session:
        move_to(session.connection(), revision)
    with database.reading() as session:
        tables = inspect(session.connection()).get_table_names()
    database.close()
    return tables


def execute(path: Path, statement: str) -> None:
    """Change a database behind the store's back."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_revisions_are_those_of_alembic() -> None:
    """The list in the code and the chain of scripts are the same."""
    config = Config()
    config.set_main_option("script_location", "store:migrations")
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in scripts)[::-1] == REVISIONS


def test_migrations_make_the_tables_of_the_code(path: Path) -> None:
    """What the migrations build is what the classes describe, types included."""
    Store.open(path).close()
    database = Database(path, read_only=True)
    with database.reading() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_down_and_up_again(path: Path) -> None:
    """Every migration can be undone and done again, and leaves nothing behind."""
    Store.open(path).close()
    everything = move(path, HEAD)
    assert move(path, BARE) == [VERSION_TABLE]
    assert "publications" not in move(path, REVISIONS[0])
    assert move(path, HEAD) == everything
    with Store.open(path, migrate=False) as store:
        assert store.runs() == ()


def test_older_store_names_the_command(path: Path) -> None:
    """Without permission to migrate, or to write, an older store stays as it is (D13)."""
    Store.open(path).close()
    move(path, "0001")
    content = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(SchemaOutdatedError, match=r"run `spectune store migrate`") as caught:
            Store.open(path, migrate=read_only, read_only=read_only)
        assert str(path) in str(caught.value)
        assert f"revision 0001 and this version needs {HEAD}" in str(caught.value)
    assert path.read_bytes() == content


def test_older_store_is_migrated_with_its_content(path: Path) -> None:
    """With permission, an older store comes up and has kept what it held (D13)."""
    run = make_run()
    with Store.open(path) as store:
        store.begin_run(run)
        store.add_measurement(make_measurement(run.run_id))
    move(path, "0001")
    with Store.open(path) as store:
        assert store.run(run.run_id) == run
        kept = make_measurement(run.run_id, num_rounds=None)  # that came later
        assert store.measurements(run.run_id) == (kept,)
        assert store.publish("scope", run.run_id, render).generation == 1


def test_new_file_needs_no_permission(path: Path) -> None:
    """There is nothing to lose in a file that does not exist."""
    with Store.open(path, migrate=False) as store:
        assert store.scopes() == ()


@pytest.mark.parametrize("read_only", [True, False])
def test_newer_store_is_refused(path: Path, read_only: bool) -> None:
    """Tables of a later version are not touched, and not read either."""
    Store.open(path).close()
    execute(path, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    content = path.read_bytes()
    with pytest.raises(SchemaTooNewError, match=r"revision 9999, newer than .*upgrade spectuned"):
        Store.open(path, read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("table", ["alembic_version", "configs"])
def test_database_of_another_program_is_refused(path: Path, table: str, read_only: bool) -> None:
    """A database without our bookkeeping is someone else's, such as Optuna's."""
    execute(path, f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    with pytest.raises(ForeignDatabaseError, match="tables of another program"):
        Store.open(path, read_only=read_only)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [(table,)]
    connection.close()


def test_epoch_is_made_once(path: Path, tmp_path: Path) -> None:
    """A store keeps its epoch over migrations; another store has another."""
    run = make_run()
    with Store.open(path) as store:
        store.begin_run(run)
        first = store.publish("scope", run.run_id, render).epoch
    move(path, "0001")
    with Store.open(path) as store:
        assert store.publish("scope", run.run_id, render).epoch == first
    with Store.open(tmp_path / "other.db") as other:
        other.begin_run(run)
        assert other.publish("scope", run.run_id, render).epoch != first


def test_blocks_of_an_older_store_are_kept(path: Path) -> None:
    """What they do not know is None."""
    run = make_run()
    newer = make_measurement(run.run_id, expected_tokens=128.5, num_rounds=41)
    with Store.open(path) as store:
        store.begin_run(run)
        store.add_measurement(newer)
    move(path, "0002")
    with Store.open(path) as store:
        older = make_measurement(run.run_id, num_rounds=None)
        assert store.measurements(run.run_id) == (older,)
        store.add_measurement(newer)
        assert store.measurements(run.run_id) == (older, newer)

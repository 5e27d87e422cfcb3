"""Which tables a database holds, and bringing them to what this version works with.

The revisions are Alembic's, but their order is written down here as well: deciding whether a
database is current takes one query, while importing Alembic takes longer than most commands
run. A test holds the two lists together.
"""

from __future__ import annotations

import threading

from sqlalchemy import Connection, inspect, text

from store.errors import (
    ForeignDatabaseError,
    SchemaOutdatedError,
    SchemaTooNewError,
    StoreNotFoundError,
)
from store.session import Database

VERSION_TABLE = "spectuned_version"
"""Alembic's bookkeeping; not its default name, which Optuna uses."""

REVISIONS = ("0001", "0002", "0003")
"""Every revision, oldest first. The last is the one this version works with."""

HEAD = REVISIONS[-1]

BARE = "base"
"""Alembic's name for a database without our tables."""

_ALEMBIC_LOCK = threading.Lock()  # Alembic keeps the migration under way in module globals.


def ensure_current(database: Database, *, migrate: bool) -> None:
    """Make sure that the tables are those of this version.

    An empty database gets its tables, unless it is read only. Of several processes that come
    here at once, one migrates while the others wait for its lock.

    Args:
        database: What was opened.
        migrate: Whether an older database may be changed.

    Raises:
        StoreNotFoundError: The database is empty and read only.
        SchemaOutdatedError: It is older, and may not be changed.
        SchemaTooNewError: A newer version has changed it.
        ForeignDatabaseError: It belongs to another program.
        StoreCorruptError: It is damaged.
    """
    with database.reading() as session:
        revision = _revision(session.connection(), database)
    if revision == HEAD:
        return
    if revision is None and database.read_only:
        raise StoreNotFoundError(f"{database.path} is empty: nothing has been stored there yet")
    if revision is not None and (database.read_only or not migrate):
        raise SchemaOutdatedError(
            f"{database.path} has tables of revision {revision} and this version needs {HEAD}: "
            "back the file up, then run `spectune store migrate`"
        )
    with database.writing() as session:
        # Asked again under the lock: another process may have done it meanwhile.
        if _revision(session.connection(), database) != HEAD:
            move_to(session.connection(), HEAD)


def move_to(connection: Connection, revision: str) -> None:
    """Run the migrations up or down to a revision, inside the connection's transaction.

    Args:
        connection: Holds the write lock; the caller commits.
        revision: One of `REVISIONS`, or `BARE`.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "store:migrations")
    config.attributes["connection"] = connection
    order = (BARE, *REVISIONS)
    down = order.index(revision) < order.index(_recorded_revision(connection))
    with _ALEMBIC_LOCK:
        (command.downgrade if down else command.upgrade)(config, revision)


def _revision(connection: Connection, database: Database) -> str | None:
    """The database's revision; None if it is empty."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    if VERSION_TABLE not in tables:
        database.check_integrity()  # Damage can look like another program's file.
        raise ForeignDatabaseError(
            f"{database.path} holds tables of another program: give the store a file of its own"
        )
    revision = _recorded_revision(connection)
    if revision != BARE and revision not in REVISIONS:
        raise SchemaTooNewError(
            f"{database.path} has tables of revision {revision}, newer than {HEAD}, the newest "
            "this version knows: upgrade spectuned, or give it another file"
        )
    return revision


def _recorded_revision(connection: Connection) -> str:
    if not inspect(connection).has_table(VERSION_TABLE):
        return BARE
    query = text(f"SELECT version_num FROM {VERSION_TABLE}")
    return connection.execute(query).scalar() or BARE

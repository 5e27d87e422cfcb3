"""Connections, transactions and driver errors: all that is particular to SQLite.

Readers see one snapshot per transaction and are never blocked (write-ahead log). Writers take
the write lock when their transaction begins, so a transaction that has begun cannot fail for
a lock any more. A commit is on the disk when it returns: a published generation must not be
given out again after a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from store.errors import (
    ConflictError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

BUSY_TIMEOUT_S = 10.0
_WRITES = "spectuned_writes"


class Database:
    """One SQLite file and the transactions on it. Use it in the process that made it only.

    Args:
        path: The file. A database that is opened for writing is created if it is missing.
        read_only: Never write, not even the files SQLite keeps beside its own.
        busy_timeout_s: Seconds to wait for another process's lock.

    Raises:
        StoreError: The file cannot be opened or is damaged.
    """

    def __init__(
        self, path: Path, *, read_only: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._frozen_stamp: tuple[int, int] | None = None
        self._db_engine = create_engine(
            "sqlite://",
            creator=self._connect,
            # A reader connects anew each time: whether it must treat the file as frozen
            # depends on who else has it open by then.
            poolclass=NullPool if read_only else QueuePool,
            hide_parameters=True,
        )
        event.listen(self._db_engine, "begin", _begin)
        self._write_engine = self._db_engine.execution_options(**{_WRITES: True})
        if not read_only:
            self._prepare_for_writing()

    def close(self) -> None:
        """Close the connections."""
        self._db_engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One transaction that sees one state of the store.

        Raises:
            StoreError: Whatever the driver meets, translated.
        """
        try:
            with self._transaction(self._db_engine) as session:
                yield session
        finally:
            if self._frozen_stamp not in (None, _stamp(self.path)):
                raise StoreBusyError(f"{self.path} was changed while it was read: try again")

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction that holds the write lock; an exception rolls it back.

        Raises:
            StoreReadOnlyError: The store was opened for reading.
            StoreBusyError: Another process kept the lock for too long.
            StoreError: Whatever else the driver meets, translated.
        """
        if self.read_only:
            raise StoreReadOnlyError(f"{self.path} was opened for reading only")
        with self._transaction(self._write_engine) as session:
            yield session

    def check_integrity(self) -> None:
        """Read the whole file and see whether it hangs together.

        Raises:
            StoreCorruptError: It does not.
        """
        with self.reading() as session:
            verdict = session.connection().exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            raise StoreCorruptError(_corrupt(self.path))

    @contextmanager
    def _transaction(self, db_engine: Engine) -> Iterator[Session]:
        try:
            with Session(db_engine, expire_on_commit=False) as session, session.begin():
                yield session
        except SQLAlchemyError as error:
            raise self._translate(error) from error

    def _prepare_for_writing(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch()
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.path} cannot be opened for writing: {error.strerror}"
            ) from error
        # Before the first write, so that a damaged file stays as it is, for its rescue.
        self.check_integrity()
        try:
            self._enable_write_ahead_log()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._translate(error) from error

    def _enable_write_ahead_log(self) -> None:
        """Switch the file to write-ahead logging, a property it keeps.

        Several processes may come here at once, and the switch, unlike all else, does not
        wait by the driver's own timeout while another of them writes.
        """
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                # Not through a session, which would begin a transaction first.
                with closing(self._db_engine.raw_connection()) as connection:
                    connection.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _connect(self) -> sqlite3.Connection:
        if not self.read_only:
            connection = self._open("mode=rw")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
            return connection
        self._frozen_stamp = None
        try:
            return self._open("mode=ro")
        except sqlite3.OperationalError as error:
            # A log that nobody has open belongs to files which a reader without write
            # permission may not create. Without a log the file is complete by itself.
            if _code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            if self._has_log():
                raise
        self._frozen_stamp = _stamp(self.path)
        return self._open("mode=ro&immutable=1")

    def _open(self, options: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{options}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,  # `_begin` says BEGIN, the driver never does.
            check_same_thread=False,  # The pool hands a connection to one thread at a time.
        )
        try:
            connection.execute("PRAGMA schema_version")  # The first touch of the file.
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _has_log(self) -> bool:
        return os.path.exists(f"{self.path}-wal")

    def _translate(self, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
        """The most fitting of our errors; only the driver's own text is passed on."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        path = self.path
        if not isinstance(cause, sqlite3.Error):
            return StoreError(f"{path}: the database layer failed ({type(error).__name__})")
        match _code(cause):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreBusyError(
                    f"{path} is locked by another process for over {self._busy_timeout_s:g} s"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return StoreCorruptError(_corrupt(path))
            case sqlite3.SQLITE_CANTOPEN if self.read_only and self._has_log():
                return StoreUnavailableError(
                    f"{path} was not closed cleanly and this account may not write to "
                    f"{path.parent} to recover it: start the daemon once, or grant permission"
                )
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StoreReadOnlyError(
                    f"{path} cannot be written by this account: grant it write permission to "
                    f"the file and to {path.parent}"
                )
            case sqlite3.SQLITE_CONSTRAINT:
                return ConflictError(f"{path} refuses this: {cause}")
            case _:
                return StoreUnavailableError(f"{path} cannot be used: {cause}")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _code(error: sqlite3.Error) -> int:
    """The primary result code; errors raised by the driver itself have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _stamp(path: Path) -> tuple[int, int]:
    try:
        facts = os.stat(path)
    except OSError:  # Gone: different from whatever it was.
        return -1, -1
    return facts.st_mtime_ns, facts.st_size


def _corrupt(path: Path) -> str:
    return (
        f"{path} is damaged or not an SQLite database; it was left untouched: restore it from "
        "a backup, or move it away to start a new store"
    )

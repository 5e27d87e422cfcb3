"""The newest publications, read with the standard library alone.

Importing the database layer takes longer than `spectune show` may take in all. This module
answers the plain case: a store of this version whose file can be read. It words no problem of
its own: whatever is not plain goes to `Store`, which answers it or says what is wrong.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from store.location import MOUNTS, check_local, parse_location
from store.records import Publication

REVISION = "0003"
"""The revision whose tables are read here: a test compares it with `store.schema`."""

VERSION_QUERY = "SELECT version_num FROM spectuned_version"
PUBLICATIONS_QUERY = (
    "SELECT scope, epoch, generation, run_id, created_at, document, sha256 "
    "FROM publications ORDER BY id DESC LIMIT ?"
)


class _NotPlainError(Exception):
    """Something that only `Store` can tell."""


def newest(
    url_or_path: str | Path, limit: int = 1, mounts: Path = MOUNTS
) -> tuple[Publication, ...]:
    """What `Store.newest` gives, sooner.

    Args:
        url_or_path: A path or `sqlite:///PATH`.
        limit: Most publications to read.
        mounts: List of mounted file systems, as /proc/mounts.

    Raises:
        StoreError: As `Store.open` for reading.
    """
    path = parse_location(url_or_path)
    check_local(path, mounts)
    try:
        return _read(path, limit)
    except (sqlite3.Error, _NotPlainError):
        from store.repository import Store

        with Store.open(path, read_only=True, mounts=mounts) as store:
            return store.newest(limit)


def _read(path: Path, limit: int) -> tuple[Publication, ...]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")  # Both queries see one state.
        if connection.execute(VERSION_QUERY).fetchone() != (REVISION,):
            raise _NotPlainError
        rows = connection.execute(PUBLICATIONS_QUERY, (limit,)).fetchall()
    return tuple(_publication(*row) for row in rows)


def _publication(
    scope: str,
    epoch: str,
    generation: int,
    run_id: str,
    created_at: str,
    document: bytes,
    sha256: str,
) -> Publication:
    if hashlib.sha256(document).hexdigest() != sha256:
        raise _NotPlainError
    return Publication(
        scope=scope,
        epoch=epoch,
        generation=generation,
        previous=generation - 1 if generation > 1 else None,
        run_id=run_id,
        created_at=datetime.fromisoformat(created_at).replace(tzinfo=UTC),
        document=document,
        sha256=sha256,
    )

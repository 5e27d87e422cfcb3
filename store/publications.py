"""Published generations: allotted, rendered, written and committed under one lock."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.errors import RecordError, StoreCorruptError, UnknownRecordError
from store.fields import INT64_MAX, key, run_key
from store.records import Publication, PublicationSlot
from store.tables import IdentityRow, PublicationRow, RunRow

Render = Callable[[PublicationSlot], bytes]
"""Writes the document for the place it is about to take."""


def publish(
    session: Session, scope: str, run_id: str, render: Render, clock: Callable[[], datetime]
) -> Publication:
    """Add the next generation of a scope.

    The generation is read, the document rendered and the row written while the write lock is
    held, so the order of generations is the order of commits, and no number is lost.

    Raises:
        UnknownRecordError: There is no such run.
        RecordError: The scope is no text, or the document no bytes or empty.
    """
    scope, run_id = key("scope", scope), run_key("run_id", run_id)
    # Where transactions do not lock the whole database, this row is the lock.
    identity = session.scalars(select(IdentityRow).with_for_update()).one()
    if session.get(RunRow, run_id) is None:
        raise UnknownRecordError(f"no run {run_id} in the store: begin it first")
    previous = session.scalar(
        select(func.max(PublicationRow.generation)).where(PublicationRow.scope == scope)
    )
    slot = PublicationSlot(
        epoch=identity.epoch,
        generation=(previous or 0) + 1,
        previous=previous,
        created_at=clock(),
    )
    document = render(slot)
    if not isinstance(document, bytes) or not document:
        raise RecordError(f"generation {slot.generation} of {scope}: must be bytes, not empty")
    row = PublicationRow(
        scope=scope,
        epoch=slot.epoch,
        generation=slot.generation,
        run_id=run_id,
        created_at=slot.created_at,
        document=document,
        sha256=hashlib.sha256(document).hexdigest(),
    )
    session.add(row)
    session.flush()
    return _record(row)


def latest(session: Session, scope: str | None) -> Publication | None:
    """The newest generation of a scope, or of whichever scope published last."""
    query = select(PublicationRow).order_by(PublicationRow.id.desc()).limit(1)
    if scope is not None:
        query = query.where(PublicationRow.scope == key("scope", scope))
    row = session.scalars(query).one_or_none()
    return None if row is None else _record(row)


def newest(session: Session, limit: int) -> tuple[Publication, ...]:
    """The publications that were committed last, whatever their scope, newest first."""
    query = select(PublicationRow).order_by(PublicationRow.id.desc()).limit(limit)
    return tuple(_record(row) for row in session.scalars(query))


def get(session: Session, scope: str, generation: int) -> Publication:
    """One generation.

    Raises:
        UnknownRecordError: It was never published.
    """
    generation = operator.index(generation)  # Drivers take no integers but Python's own.
    query = select(PublicationRow).where(
        PublicationRow.scope == key("scope", scope), PublicationRow.generation == generation
    )
    in_range = 1 <= generation <= INT64_MAX
    row = session.scalars(query).one_or_none() if in_range else None
    if row is None:
        raise UnknownRecordError(f"{scope} has no generation {generation}")
    return _record(row)


def history(session: Session, scope: str, limit: int) -> tuple[Publication, ...]:
    """The generations of a scope, newest first."""
    query = (
        select(PublicationRow)
        .where(PublicationRow.scope == key("scope", scope))
        .order_by(PublicationRow.generation.desc())
        .limit(limit)
    )
    return tuple(_record(row) for row in session.scalars(query))


def scopes(session: Session) -> tuple[str, ...]:
    """Every scope with a publication, in alphabetical order."""
    query = select(PublicationRow.scope).distinct().order_by(PublicationRow.scope)
    return tuple(session.scalars(query))


def _record(row: PublicationRow) -> Publication:
    if hashlib.sha256(row.document).hexdigest() != row.sha256:
        raise StoreCorruptError(
            f"generation {row.generation} of {row.scope} does not match its digest: "
            "restore the store from a backup"
        )
    return Publication(
        scope=row.scope,
        epoch=row.epoch,
        generation=row.generation,
        previous=row.generation - 1 if row.generation > 1 else None,
        run_id=row.run_id,
        created_at=row.created_at,
        document=row.document,
        sha256=row.sha256,
    )

"""The life of a run: running, then done, failed or interrupted, once and for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import get_args

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from store.errors import ConflictError, UnknownRecordError
from store.fields import one_of, run_key, text, utc_time
from store.records import FinalStatus, RunRecord
from store.tables import RunRow


def begin(session: Session, run: RunRecord, owner: str) -> None:
    """Store a new run.

    Raises:
        ConflictError: The run exists, or is over already.
    """
    if run.status != "running":
        raise ConflictError(f"run {run.run_id} is {run.status}: only a running one can begin")
    values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    session.add(RunRow(**values, owner=owner))
    try:
        session.flush()
    except IntegrityError as error:
        raise ConflictError(f"run {run.run_id} exists already") from error


def finish(
    session: Session, run_id: str, status: FinalStatus, reason: str | None, finished_at: datetime
) -> None:
    """Store how a run ended.

    Raises:
        UnknownRecordError: There is no such run.
        ConflictError: It has ended before.
        RecordError: A value is not of its kind.
    """
    row = _row(session, run_id)
    if row.status != "running":
        raise ConflictError(f"run {row.run_id} is {row.status} already")
    row.status = one_of(get_args(FinalStatus))("status", status)
    row.reason = None if reason is None else text("reason", reason)
    row.finished_at = utc_time("finished_at", finished_at)


def get(session: Session, run_id: str) -> RunRecord:
    """One run.

    Raises:
        UnknownRecordError: There is no such run.
        RecordError: `run_id` is not a UUID.
    """
    return _record(_row(session, run_id))


def newest(session: Session, limit: int) -> tuple[RunRecord, ...]:
    """The runs that began last, newest first."""
    query = select(RunRow).order_by(RunRow.started_at.desc(), RunRow.run_id).limit(limit)
    return tuple(_record(row) for row in session.scalars(query))


def interrupt_stale(
    session: Session, now: datetime, is_alive: Callable[[str], bool]
) -> tuple[str, ...]:
    """Mark running runs whose process is gone as interrupted, and name them."""
    query = select(RunRow).where(RunRow.status == "running").order_by(RunRow.started_at)
    stale = [row for row in session.scalars(query) if not is_alive(row.owner)]
    for row in stale:
        finish(session, row.run_id, "interrupted", "the process that ran it is gone", now)
    return tuple(row.run_id for row in stale)


def _row(session: Session, run_id: str) -> RunRow:
    row = session.get(RunRow, run_key("run_id", run_id))
    if row is None:
        raise UnknownRecordError(f"no run {run_id} in the store")
    return row


def _record(row: RunRow) -> RunRecord:
    names = [field.name for field in dataclasses.fields(RunRecord)]
    return RunRecord(**{name: getattr(row, name) for name in names})

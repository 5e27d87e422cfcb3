"""Evidence of runs: rows that are added and read, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from store.errors import UnknownRecordError
from store.fields import converters
from store.records import (
    AcceptanceRecord,
    CostRecord,
    FailureRecord,
    MeasurementRecord,
    PredictionRecord,
)
from store.tables import (
    AcceptanceRow,
    CostRow,
    EvidenceRow,
    FailureRow,
    MeasurementRow,
    PredictionRow,
    RunRow,
)

EvidenceRecord = (
    MeasurementRecord | FailureRecord | AcceptanceRecord | CostRecord | PredictionRecord
)
EvidenceT = TypeVar(
    "EvidenceT",
    MeasurementRecord,
    FailureRecord,
    AcceptanceRecord,
    CostRecord,
    PredictionRecord,
)

_ROWS: dict[type, type[EvidenceRow]] = {
    MeasurementRecord: MeasurementRow,
    FailureRecord: FailureRow,
    AcceptanceRecord: AcceptanceRow,
    CostRecord: CostRow,
    PredictionRecord: PredictionRow,
}


def add(session: Session, records: Iterable[EvidenceRecord]) -> None:
    """Append records of one or several kinds, in their order.

    Raises:
        UnknownRecordError: A record names a run that does not exist.
    """
    rows: dict[type[EvidenceRow], list[dict[str, object]]] = {}
    for record in records:
        rows.setdefault(_ROWS[type(record)], []).append(_values(record))
    run_ids = {values["run_id"] for group in rows.values() for values in group}
    for run_id in run_ids:
        if session.get(RunRow, run_id) is None:
            raise UnknownRecordError(f"no run {run_id} in the store: begin it first")
    for row_type, group in rows.items():
        session.execute(insert(row_type), group)


def read(
    session: Session, record_type: type[EvidenceT], **filters: object
) -> tuple[EvidenceT, ...]:
    """Records of one kind, in the order they were added.

    Args:
        session: The transaction.
        record_type: What to read.
        filters: Value by field name; None does not filter.

    Raises:
        RecordError: A filter is not a value of its field.
    """
    row_type = _ROWS[record_type]
    query = select(row_type).order_by(row_type.id)
    for name, value in filters.items():
        if value is not None:
            plain = converters(record_type)[name](name, value)
            query = query.where(getattr(row_type, name) == plain)
    names = [field.name for field in dataclasses.fields(record_type)]
    return tuple(
        record_type(**{name: getattr(row, name) for name in names})
        for row in session.scalars(query)
    )


def _values(record: EvidenceRecord) -> dict[str, object]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}

"""The tables, as SQLAlchemy classes. Private to `store`: rows never leave it.

Column names equal the field names of `store.records`, so that rows and records convert into
each other field by field. A change here needs a migration; a test compares the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

ROW_ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in a column declared INTEGER."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, also where the database (SQLite) keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn any zone into UTC before the zone is dropped."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Give back the zone that was dropped."""
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own way to declare it
        datetime: UtcDateTime,
        float: Double,
        int: BigInteger,
        str: String,
    }


class IdentityRow(Base):
    """The one row that says which store this is."""

    __tablename__ = "store_identity"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    epoch: Mapped[str]
    created_at: Mapped[datetime]


class RunRow(Base):
    """One run; `owner` names the process that works on it (see `store.owner`)."""

    __tablename__ = "runs"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(index=True)
    target_name: Mapped[str]
    target_fingerprint: Mapped[str]
    device_name: Mapped[str]
    device_fingerprint: Mapped[str]
    workload_source: Mapped[str]
    workload_fingerprint: Mapped[str]
    seed: Mapped[int]
    dtype: Mapped[str]
    tuner_version: Mapped[str]
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str]
    reason: Mapped[str | None] = mapped_column(Text)
    finished_at: Mapped[datetime | None]
    owner: Mapped[str]


class EvidenceRow(Base):
    """What the tables that a run only ever adds to have in common."""

    __abstract__ = True

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)


class MeasurementRow(EvidenceRow):
    """A line of the ledger."""

    __tablename__ = "measurements"

    batch_size: Mapped[int]
    drafter: Mapped[str]
    num_speculative_tokens: Mapped[int]
    draft_temperature: Mapped[float | None]
    stage: Mapped[str]
    trial_number: Mapped[int | None]
    proposed_by: Mapped[str]
    block_index: Mapped[int]
    baseline_tokens: Mapped[int]
    baseline_s: Mapped[float]
    candidate_tokens: Mapped[int]
    candidate_s: Mapped[float]
    expected_tokens: Mapped[float | None]
    num_rounds: Mapped[int | None]
    num_drafts: Mapped[int]
    num_draft_tokens: Mapped[int]
    num_accepted_tokens: Mapped[int]
    created_at: Mapped[datetime]
    disturbed: Mapped[bool]


class FailureRow(EvidenceRow):
    """A trial without a measurement."""

    __tablename__ = "failures"

    batch_size: Mapped[int]
    drafter: Mapped[str]
    num_speculative_tokens: Mapped[int]
    draft_temperature: Mapped[float | None]
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]


class AcceptanceRow(EvidenceRow):
    """Acceptance of one drafter, K, task and temperature."""

    __tablename__ = "acceptance"

    drafter: Mapped[str]
    draft_temperature: Mapped[float | None]
    num_speculative_tokens: Mapped[int]
    task: Mapped[str]
    temperature: Mapped[float]
    num_requests: Mapped[int]
    num_output_tokens: Mapped[int]
    expected_rounds: Mapped[float]
    tokens_per_round: Mapped[float]
    tokens_per_round_std_error: Mapped[float | None]
    num_drafts: Mapped[float]
    num_draft_tokens: Mapped[float]
    num_accepted_tokens_per_pos: Mapped[list[float]] = mapped_column(JSON)
    source: Mapped[str]


class CostRow(EvidenceRow):
    """Seconds of one kind of step at one size."""

    __tablename__ = "costs"

    kind: Mapped[str]
    drafter: Mapped[str | None]
    batch_size: Mapped[int]
    num_tokens: Mapped[int]
    num_speculative_tokens: Mapped[int]
    seconds_median: Mapped[float]
    seconds_low: Mapped[float]
    seconds_high: Mapped[float]
    num_samples: Mapped[int]


class PredictionRow(EvidenceRow):
    """The model's figure for one arm."""

    __tablename__ = "predictions"

    batch_size: Mapped[int]
    drafter: Mapped[str]
    num_speculative_tokens: Mapped[int]
    draft_temperature: Mapped[float | None]
    tokens_per_s: Mapped[float]
    off_tokens_per_s: Mapped[float]
    request_std_error: Mapped[float]


class PublicationRow(Base):
    """One published generation; the database refuses to change or delete it."""

    __tablename__ = "publications"
    __table_args__ = (UniqueConstraint("scope", "generation", name="uq_publications_generation"),)

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    scope: Mapped[str]
    epoch: Mapped[str]
    generation: Mapped[int]
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    created_at: Mapped[datetime]
    document: Mapped[bytes] = mapped_column(LargeBinary)
    sha256: Mapped[str]

"""The store as the rest of the program sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from store import ledger, location, owner, publications, runs, schema
from store.errors import StoreNotFoundError
from store.fields import utc_time
from store.publications import Render
from store.records import (
    AcceptanceRecord,
    CostRecord,
    FailureRecord,
    FinalStatus,
    MeasurementRecord,
    PredictionRecord,
    Publication,
    RunRecord,
    Stage,
)
from store.session import BUSY_TIMEOUT_S, Database


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


class Store:
    """Runs, their evidence and what was published from it.

    Every method is one transaction. Threads may share a store; processes may not: each opens
    its own. All methods raise `StoreError` for what goes wrong below them.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        *,
        migrate: bool = True,
        read_only: bool = False,
        clock: Callable[[], datetime] = utc_now,
        mounts: Path = location.MOUNTS,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> Self:
        """Open a store, or create it.

        Opening for writing reads the whole file once, so that a damaged one is never written.

        Args:
            url_or_path: A path or `sqlite:///PATH`. The folders above it are created too.
            migrate: Whether tables of an older version may be changed. A new file gets its
                tables in any case.
            read_only: Only read. Works without write permission for the folder, unless the
                last writer died and left a log that must be recovered first.
            clock: Gives the time of a publication.
            mounts: List of mounted file systems, as /proc/mounts.
            busy_timeout_s: Seconds to wait for another process's lock.

        Raises:
            StoreLocationError: Nothing can be stored there.
            StoreNotFoundError: There is nothing to read.
            StoreUnavailableError: The file cannot be opened.
            StoreReadOnlyError: The file may not be written.
            StoreCorruptError: The file is damaged; it is left as it is.
            SchemaError: The tables are older (and may not be changed), newer, or foreign.
        """
        path = location.parse_location(url_or_path)
        location.check_local(path, mounts)
        if read_only and not os.path.exists(path):  # Path.exists raises where it may not look.
            raise StoreNotFoundError(
                f"{path} does not exist or is out of this account's reach: nothing to read"
            )
        database = Database(path, read_only=read_only, busy_timeout_s=busy_timeout_s)
        try:
            schema.ensure_current(database, migrate=migrate)
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store."""
        self.close()

    def begin_run(self, run: RunRecord) -> None:
        """Store a run that starts now, owned by this process.

        Raises:
            ConflictError: The run exists already, or its status is not `running`.
        """
        with self._database.writing() as session:
            runs.begin(session, run, owner.current_owner())

    def finish_run(
        self, run_id: str, status: FinalStatus, reason: str | None, finished_at: datetime
    ) -> None:
        """Store how a run ended.

        Raises:
            UnknownRecordError: There is no such run.
            ConflictError: It has ended before, or was marked as interrupted.
        """
        with self._database.writing() as session:
            runs.finish(session, run_id, status, reason, finished_at)

    def interrupt_stale_runs(
        self, now: datetime, is_alive: Callable[[str], bool] = owner.is_alive
    ) -> tuple[str, ...]:
        """Mark runs that a dead process left running as interrupted.

        Args:
            now: Becomes their end.
            is_alive: Tells from an owner's token whether its process lives.

        Returns:
            The ids of the runs that were marked, oldest first.
        """
        with self._database.writing() as session:
            return runs.interrupt_stale(session, now, is_alive)

    def run(self, run_id: str) -> RunRecord:
        """One run.

        Raises:
            UnknownRecordError: There is no such run.
        """
        with self._database.reading() as session:
            return runs.get(session, run_id)

    def runs(self, limit: int = 20) -> tuple[RunRecord, ...]:
        """The runs that began last, newest first."""
        with self._database.reading() as session:
            return runs.newest(session, limit)

    def add_measurement(self, measurement: MeasurementRecord) -> None:
        """Append one block to the ledger.

        Raises:
            UnknownRecordError: Its run does not exist.
        """
        self._add([measurement])

    def add_measurements(self, measurements: Iterable[MeasurementRecord]) -> None:
        """Append blocks to the ledger, all or none.

        Raises:
            UnknownRecordError: A run does not exist.
        """
        self._add(measurements)

    def measurements(
        self, run_id: str, batch_size: int | None = None, stage: Stage | None = None
    ) -> tuple[MeasurementRecord, ...]:
        """Blocks of a run in the order they were added; None does not filter."""
        with self._database.reading() as session:
            return ledger.read(
                session, MeasurementRecord, run_id=run_id, batch_size=batch_size, stage=stage
            )

    def add_failure(self, failure: FailureRecord) -> None:
        """Store a trial that gave no measurement.

        Raises:
            UnknownRecordError: Its run does not exist.
        """
        self._add([failure])

    def failures(self, run_id: str) -> tuple[FailureRecord, ...]:
        """Failed trials of a run in the order they were added."""
        with self._database.reading() as session:
            return ledger.read(session, FailureRecord, run_id=run_id)

    def add_acceptance(self, acceptance: Iterable[AcceptanceRecord]) -> None:
        """Store acceptance figures, all or none.

        Raises:
            UnknownRecordError: A run does not exist.
        """
        self._add(acceptance)

    def acceptance(self, run_id: str, drafter: str | None = None) -> tuple[AcceptanceRecord, ...]:
        """Acceptance figures of a run in the order they were added; None does not filter."""
        with self._database.reading() as session:
            return ledger.read(session, AcceptanceRecord, run_id=run_id, drafter=drafter)

    def add_costs(self, costs: Iterable[CostRecord]) -> None:
        """Store step costs, all or none.

        Raises:
            UnknownRecordError: A run does not exist.
        """
        self._add(costs)

    def costs(self, run_id: str) -> tuple[CostRecord, ...]:
        """Step costs of a run in the order they were added."""
        with self._database.reading() as session:
            return ledger.read(session, CostRecord, run_id=run_id)

    def add_predictions(self, predictions: Iterable[PredictionRecord]) -> None:
        """Store the model's figures, all or none.

        Raises:
            UnknownRecordError: A run does not exist.
        """
        self._add(predictions)

    def predictions(
        self, run_id: str, batch_size: int | None = None
    ) -> tuple[PredictionRecord, ...]:
        """The model's figures of a run in the order they were added; None does not filter."""
        with self._database.reading() as session:
            return ledger.read(session, PredictionRecord, run_id=run_id, batch_size=batch_size)

    def publish(self, scope: str, run_id: str, render: Render) -> Publication:
        """Publish the next generation of a scope; on return it is on the disk.

        Args:
            scope: What the document is for, as one key.
            run_id: The run whose evidence it rests on.
            render: Gives the document for its epoch and generation. It runs while every other
                writer waits, so it should only write down what was decided before. If it
                raises, nothing is published and the generation stays free.

        Raises:
            UnknownRecordError: The run does not exist.
            RecordError: The document is not bytes, or empty.
        """
        with self._database.writing() as session:
            return publications.publish(session, scope, run_id, render, self._now)

    def latest(self, scope: str) -> Publication | None:
        """The newest generation of a scope, or None if it never published."""
        with self._database.reading() as session:
            return publications.latest(session, scope)

    def latest_any(self) -> Publication | None:
        """The publication that was committed last, whatever its scope, or None."""
        with self._database.reading() as session:
            return publications.latest(session, None)

    def newest(self, limit: int = 100) -> tuple[Publication, ...]:
        """The publications that were committed last, whatever their scope, newest first."""
        with self._database.reading() as session:
            return publications.newest(session, limit)

    def get(self, scope: str, generation: int) -> Publication:
        """One generation.

        Raises:
            UnknownRecordError: It was never published.
        """
        with self._database.reading() as session:
            return publications.get(session, scope, generation)

    def history(self, scope: str, limit: int = 100) -> tuple[Publication, ...]:
        """The generations of a scope, newest first."""
        with self._database.reading() as session:
            return publications.history(session, scope, limit)

    def scopes(self) -> tuple[str, ...]:
        """Every scope that has published, in alphabetical order."""
        with self._database.reading() as session:
            return publications.scopes(session)

    def _add(self, records: Iterable[ledger.EvidenceRecord]) -> None:
        with self._database.writing() as session:
            ledger.add(session, records)

    def _now(self) -> datetime:
        return utc_time("the time of publication", self._clock())

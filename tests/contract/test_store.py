"""What every store must do, whatever database is behind it.

A store on another database inherits `StoreContract` and supplies its own `store` fixture.
"""

import dataclasses
import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy import int64

from store.errors import ConflictError, RecordError, UnknownRecordError
from store.fields import INT64_MAX
from store.records import (
    AcceptanceRecord,
    CostRecord,
    FailureRecord,
    MeasurementRecord,
    PredictionRecord,
    PublicationSlot,
    RunRecord,
)
from store.repository import Store
from tests.contract.store_samples import (
    NOON,
    any_record,
    make_acceptance,
    make_cost,
    make_failure,
    make_measurement,
    make_prediction,
    make_run,
)

NOBODY = str(uuid.UUID(int=0))

# The store is append-only and each example has a run of its own, so it may be shared.
round_trip = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def render(slot: PublicationSlot) -> bytes:
    """A document that tells its place."""
    return f"{slot.epoch} {slot.generation} {slot.previous}\n".encode()


class StoreContract:
    """The contract; see the module's text."""

    @pytest.fixture
    def run(self, store: Store) -> RunRecord:
        """A run that has begun."""
        run = make_run()
        store.begin_run(run)
        return run

    # Runs

    def test_run_comes_back_as_it_went_in(self, store: Store, run: RunRecord) -> None:
        """A run is running, and equal to what was stored."""
        assert store.run(run.run_id) == run
        assert store.run(run.run_id).status == "running"

    def test_run_is_found_in_any_spelling_of_its_id(self, store: Store, run: RunRecord) -> None:
        """UUIDs compare by value, not by letters."""
        assert store.run(run.run_id.upper()) == run

    def test_second_begin_is_refused(self, store: Store, run: RunRecord) -> None:
        """A run id is used once."""
        with pytest.raises(ConflictError, match=f"run {run.run_id} exists already"):
            store.begin_run(make_run(run_id=run.run_id, seed=99))
        assert store.run(run.run_id) == run

    def test_run_that_is_over_cannot_begin(self, store: Store) -> None:
        """The store itself decides when a run is over."""
        with pytest.raises(ConflictError, match="only a running one can begin"):
            store.begin_run(make_run(status="done"))
        assert store.runs() == ()

    @pytest.mark.parametrize("status", ["done", "failed", "interrupted"])
    def test_finish(self, store: Store, run: RunRecord, status: Any) -> None:
        """The end of a run is kept with its reason and time."""
        end = NOON + timedelta(minutes=9)
        store.finish_run(run.run_id, status, "because", end)
        found = store.run(run.run_id)
        assert (found.status, found.reason, found.finished_at) == (status, "because", end)

    def test_second_finish_is_refused(self, store: Store, run: RunRecord) -> None:
        """A run ends once; the first end stays."""
        store.finish_run(run.run_id, "interrupted", None, NOON)
        with pytest.raises(ConflictError, match="is interrupted already"):
            store.finish_run(run.run_id, "done", None, NOON)
        assert store.run(run.run_id).status == "interrupted"

    def test_finish_takes_a_final_status_only(self, store: Store, run: RunRecord) -> None:
        """A status outside the list is refused and changes nothing."""
        with pytest.raises(RecordError, match="status = 'gone': must be one of"):
            store.finish_run(run.run_id, "gone", None, NOON)  # type: ignore[arg-type]
        with pytest.raises(RecordError, match="status = 'running': must be one of"):
            store.finish_run(run.run_id, "running", None, NOON)  # type: ignore[arg-type]
        assert store.run(run.run_id) == run

    def test_unknown_run(self, store: Store) -> None:
        """An id without a run, and a text that is no id, are told apart."""
        with pytest.raises(UnknownRecordError, match=NOBODY):
            store.run(NOBODY)
        with pytest.raises(UnknownRecordError, match=NOBODY):
            store.finish_run(NOBODY, "done", None, NOON)
        with pytest.raises(RecordError, match="run_id = 'latest': must be a UUID"):
            store.run("latest")

    def test_runs_newest_first(self, store: Store) -> None:
        """Runs are listed by when they began, up to the limit."""
        runs = [make_run(started_at=NOON + timedelta(hours=hours)) for hours in (2, 0, 3, 1)]
        for run in runs:
            store.begin_run(run)
        assert store.runs() == (runs[2], runs[0], runs[3], runs[1])
        assert store.runs(limit=2) == (runs[2], runs[0])

    def test_runs_sort_by_moment_not_by_clock_face(self, store: Store) -> None:
        """Times of different zones are compared as moments."""
        east = make_run(started_at=datetime(2026, 3, 1, 18, 0, tzinfo=timezone(timedelta(hours=9))))
        west = make_run(started_at=datetime(2026, 3, 1, 10, 0, tzinfo=UTC))
        store.begin_run(east)
        store.begin_run(west)
        assert store.runs() == (west, east)

    def test_stale_runs_are_interrupted(self, store: Store, run: RunRecord) -> None:
        """Only running runs of dead processes are marked; what ended stays as it is."""
        done = make_run()
        store.begin_run(done)
        store.finish_run(done.run_id, "done", None, NOON)
        assert store.interrupt_stale_runs(NOON) == ()
        end = NOON + timedelta(days=1)
        assert store.interrupt_stale_runs(end, is_alive=lambda owner: False) == (run.run_id,)
        found = store.run(run.run_id)
        assert (found.status, found.finished_at) == ("interrupted", end)
        assert found.reason == "the process that ran it is gone"
        assert store.run(done.run_id).status == "done"
        assert store.interrupt_stale_runs(end, is_alive=lambda owner: False) == ()

    # Evidence

    def test_measurements_keep_their_order(self, store: Store, run: RunRecord) -> None:
        """The ledger gives blocks in the order they were added, and filters them."""
        first = make_measurement(run.run_id, block_index=5)
        store.add_measurement(first)
        others = [
            make_measurement(run.run_id, block_index=1),
            make_measurement(run.run_id, batch_size=16),
            make_measurement(run.run_id, batch_size=16, stage="validate"),
        ]
        store.add_measurements(others)
        assert store.measurements(run.run_id) == (first, *others)
        assert store.measurements(run.run_id, batch_size=16) == tuple(others[1:])
        assert store.measurements(run.run_id, stage="validate") == (others[2],)
        assert store.measurements(run.run_id, batch_size=4, stage="validate") == ()

    def test_evidence_belongs_to_its_run(self, store: Store, run: RunRecord) -> None:
        """Each kind of evidence is read back for its own run only."""
        other = make_run()
        store.begin_run(other)
        store.add_measurement(make_measurement(run.run_id))
        store.add_failure(make_failure(run.run_id))
        store.add_acceptance([make_acceptance(run.run_id)])
        store.add_costs([make_cost(run.run_id)])
        store.add_predictions([make_prediction(run.run_id)])
        assert store.failures(run.run_id) == (make_failure(run.run_id),)
        assert store.acceptance(run.run_id) == (make_acceptance(run.run_id),)
        assert store.costs(run.run_id) == (make_cost(run.run_id),)
        assert store.predictions(run.run_id) == (make_prediction(run.run_id),)
        assert store.measurements(other.run_id) == ()
        assert store.failures(other.run_id) == ()
        assert store.acceptance(other.run_id) == ()
        assert store.costs(other.run_id) == ()
        assert store.predictions(other.run_id) == ()

    def test_evidence_filters(self, store: Store, run: RunRecord) -> None:
        """Acceptance is filtered by drafter, predictions by batch size."""
        acceptance = [make_acceptance(run.run_id, drafter=name) for name in ("a", "b", "a")]
        predictions = [make_prediction(run.run_id, batch_size=size) for size in (1, 4, 1)]
        store.add_acceptance(acceptance)
        store.add_predictions(predictions)
        assert store.acceptance(run.run_id, drafter="a") == (acceptance[0], acceptance[2])
        assert store.predictions(run.run_id, batch_size=4) == (predictions[1],)

    def test_questions_may_be_asked_with_numpy_integers(self, store: Store, run: RunRecord) -> None:
        """A filter or a generation is converted as fields are (D15)."""
        four: Any = int64(4)
        one: Any = int64(1)
        store.add_measurement(make_measurement(run.run_id))
        published = store.publish("a", run.run_id, render)
        assert len(store.measurements(run.run_id, batch_size=four)) == 1
        assert store.get("a", one) == published
        with pytest.raises(RecordError, match="batch_size = 0"):
            store.measurements(run.run_id, batch_size=0)

    def test_nothing_to_add_is_fine(self, store: Store, run: RunRecord) -> None:
        """An empty list stores nothing."""
        store.add_measurements([])
        assert store.measurements(run.run_id) == ()

    def test_evidence_of_an_unknown_run_is_refused_whole(
        self, store: Store, run: RunRecord
    ) -> None:
        """One bad record keeps the whole list out."""
        with pytest.raises(UnknownRecordError, match=NOBODY):
            store.add_measurements([make_measurement(run.run_id), make_measurement(NOBODY)])
        assert store.measurements(run.run_id) == ()

    def test_list_that_breaks_off_stores_nothing(self, store: Store, run: RunRecord) -> None:
        """An error of the caller's own while records are given leaves no part of them."""

        def broken() -> Iterator[MeasurementRecord]:
            yield make_measurement(run.run_id)
            raise RuntimeError("cut")

        with pytest.raises(RuntimeError, match="cut"):
            store.add_measurements(broken())
        assert store.measurements(run.run_id) == ()

    # Round trips at the edges of the types

    @round_trip
    @given(run=any_record(RunRecord, status="running"))
    def test_any_run_comes_back(self, store: Store, run: RunRecord) -> None:
        """Whatever a run may hold survives."""
        run = dataclasses.replace(run, run_id=str(uuid.uuid4()))  # Examples repeat themselves.
        store.begin_run(run)
        found = store.run(run.run_id)
        assert found == run
        assert found.started_at.utcoffset() == timedelta(0)

    @round_trip
    @given(
        data=st.data(),
        record_type=st.sampled_from(
            [MeasurementRecord, FailureRecord, AcceptanceRecord, CostRecord, PredictionRecord]
        ),
    )
    def test_any_evidence_comes_back(
        self, store: Store, data: st.DataObject, record_type: type[Any]
    ) -> None:
        """Whatever a piece of evidence may hold survives."""
        run = make_run()
        store.begin_run(run)
        records = data.draw(st.lists(any_record(record_type, run_id=run.run_id), max_size=4))
        match record_type:
            case _ if record_type is MeasurementRecord:
                store.add_measurements(records)
                found: tuple[Any, ...] = store.measurements(run.run_id)
            case _ if record_type is FailureRecord:
                for record in records:
                    store.add_failure(record)
                found = store.failures(run.run_id)
            case _ if record_type is AcceptanceRecord:
                store.add_acceptance(records)
                found = store.acceptance(run.run_id)
            case _ if record_type is CostRecord:
                store.add_costs(records)
                found = store.costs(run.run_id)
            case _:
                store.add_predictions(records)
                found = store.predictions(run.run_id)
        assert found == tuple(records)

    @round_trip
    @given(document=st.binary(min_size=1, max_size=300))
    def test_any_document_comes_back(self, store: Store, document: bytes) -> None:
        """The bytes that are served are the bytes that were rendered."""
        run = make_run()
        store.begin_run(run)
        published = store.publish("bytes", run.run_id, lambda slot: document)
        found = store.get("bytes", published.generation)
        assert found.document == document
        assert found.sha256 == hashlib.sha256(document).hexdigest()

    # Publications

    def test_generations_count_up_within_a_scope(self, store: Store, run: RunRecord) -> None:
        """Each scope counts for itself, and the document knows its place."""
        first = store.publish("a", run.run_id, render)
        other = store.publish("b", run.run_id, render)
        second = store.publish("a", run.run_id, render)
        assert (first.generation, first.previous) == (1, None)
        assert (other.generation, other.previous) == (1, None)
        assert (second.generation, second.previous) == (2, 1)
        assert second.document == f"{second.epoch} 2 1\n".encode()
        assert first.epoch == other.epoch == second.epoch
        assert second.run_id == run.run_id

    def test_publications_are_found(self, store: Store, run: RunRecord) -> None:
        """By scope, by generation, over all scopes, and as a history."""
        first = store.publish("a", run.run_id, render)
        second = store.publish("a", run.run_id, render)
        third = store.publish("b", run.run_id, render)
        assert store.latest("a") == second
        assert store.latest_any() == third
        assert store.get("a", 1) == first
        assert store.history("a") == (second, first)
        assert store.history("a", limit=1) == (second,)
        assert store.scopes() == ("a", "b")

    def test_newest_over_scopes_is_the_last_commit(self, store: Store, run: RunRecord) -> None:
        """A higher generation in another scope does not count as newer."""
        for _ in range(3):
            store.publish("a", run.run_id, render)
        last = store.publish("b", run.run_id, render)
        assert store.latest_any() == last

    def test_never_published(self, store: Store) -> None:
        """A scope without publications has a defined, empty answer."""
        assert store.latest("a") is None
        assert store.latest_any() is None
        assert store.history("a") == ()
        assert store.scopes() == ()

    @pytest.mark.parametrize("generation", [-1, 0, 2, INT64_MAX, INT64_MAX + 1])
    def test_unknown_generation(self, store: Store, run: RunRecord, generation: int) -> None:
        """A generation that was never published is named in the error."""
        store.publish("a", run.run_id, render)
        with pytest.raises(UnknownRecordError, match=f"a has no generation {generation}"):
            store.get("a", generation)

    def test_threads_may_share_a_store(self, store: Store, run: RunRecord) -> None:
        """Publications of several threads get one generation each, without gaps."""

        def publish(_: int) -> int:
            return store.publish("a", run.run_id, render).generation

        with ThreadPoolExecutor(4) as pool:
            generations = list(pool.map(publish, range(24)))
        assert sorted(generations) == list(range(1, 25))
        assert len(store.history("a")) == 24

    def test_failed_render_publishes_nothing(self, store: Store, run: RunRecord) -> None:
        """The caller's error passes through, and the generation stays free."""

        def fail(slot: PublicationSlot) -> bytes:
            raise RuntimeError("no evidence")

        store.publish("a", run.run_id, render)
        with pytest.raises(RuntimeError, match="no evidence"):
            store.publish("a", run.run_id, fail)
        assert len(store.history("a")) == 1
        assert store.publish("a", run.run_id, render).generation == 2

    @pytest.mark.parametrize("document", [b"", "text", None])
    def test_document_must_be_bytes(self, store: Store, run: RunRecord, document: Any) -> None:
        """An empty document or one of another type is refused."""
        with pytest.raises(RecordError, match="must be bytes, not empty"):
            store.publish("a", run.run_id, lambda slot: document)
        assert store.latest("a") is None

    def test_publication_needs_its_run(self, store: Store) -> None:
        """Without a run there is no evidence, so there is no publication."""
        with pytest.raises(UnknownRecordError, match=NOBODY):
            store.publish("a", NOBODY, render)
        assert store.scopes() == ()

    def test_scope_must_not_be_empty(self, store: Store, run: RunRecord) -> None:
        """An empty scope would be taken for any scope."""
        with pytest.raises(RecordError, match="scope = ''"):
            store.publish("", run.run_id, render)
        with pytest.raises(RecordError, match="scope = ''"):
            store.latest("")


class TestSqliteStore(StoreContract):
    """The contract on an SQLite file."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A fresh store."""
        with Store.open(tmp_path / "store.db") as store:
            yield store

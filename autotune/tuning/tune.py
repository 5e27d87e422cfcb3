"""The main job: record, replay, time, search, validate, decide, publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from autotune.document import PublishedConfig
from autotune.errors import AutotuneError
from autotune.progress import Progress, Stage
from autotune.settings import TuneSettings
from autotune.tuning.acceptance import AcceptanceProfile, acceptance_records, profile_drafters
from autotune.tuning.arms import SearchSpace
from autotune.tuning.belief import Cell
from autotune.tuning.blocks import Ledger
from autotune.tuning.costs import cost_records, measure_costs
from autotune.tuning.known import known_cells
from autotune.tuning.paired import PairedBench
from autotune.tuning.prior import Prior
from autotune.tuning.publish import build_document, scope_of, tuner_version
from autotune.tuning.search import Budget, Search
from autotune.tuning.session import Session, open_session
from autotune.tuning.study import ArmStudy
from engine.errors import EngineError
from engine.latency import CostTable
from policies.decide import NO_VALID_TRIAL
from policies.types import DEFAULT_MARGINS, SpeculativeConfig
from store.errors import StoreError
from store.records import (
    PredictionRecord,
    ProposedBy,
    Publication,
    PublicationSlot,
    RunKind,
    RunRecord,
)
from store.repository import Store

_EXPLORE = "Search"
_VALIDATE = "Validate the best"


def tune(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Search, and publish what was found.

    Args:
        settings: What to search.
        store: Ledger and publications.
        studies: SQLite file of Optuna's own.
        progress: Told what is being done.

    Returns:
        The publication; None when no trial was valid, so that nothing may be published.

    Raises:
        AutotuneError: Settings, traffic or device are unusable.
        EngineError: The target cannot be used.
        StoreError: The store cannot be written.
    """
    progress.plan(_plan(settings))
    store.interrupt_stale_runs(datetime.now(UTC))
    session = open_session(settings, progress)
    with run_record(store, session, "tune") as run_id:
        acceptance = profile_drafters(session, progress)
        store.add_acceptance(acceptance_records(session, acceptance, run_id))
        cells = measure_costs(session, acceptance, progress)
        store.add_costs(cost_records(cells, run_id))
        prior = Prior(acceptance, CostTable(cells))
        arms = acceptance.arms(settings.max_num_speculative_tokens)
        store.add_predictions(_predictions(settings, prior, arms, run_id))
        bench = PairedBench(session, acceptance, prior)
        ledger = Ledger(store, run_id, bench, acceptance.log_std_error)
        search = Search(
            arms=arms,
            batch_sizes=settings.batch_sizes,
            predictor=prior,
            ledger=ledger,
            study=ArmStudy(studies, run_id, settings.batch_sizes, _space(settings, acceptance)),
            budget=_budget(settings),
            seed=settings.seed,
            known=_known(store, session, progress),
            on_trial=_stage(progress, _EXPLORE),
            on_block=_stage(progress, _VALIDATE),
        )
        decision, evidence = search.run()
        progress.update(1.0)
        if ledger.num_disturbed:
            progress.note(
                f"{ledger.num_disturbed} blocks do not count: other processes used the processors"
            )
        if decision.reason == NO_VALID_TRIAL:
            progress.note("no valid trial: nothing is published, what was published stays")
            return None

        def render(slot: PublicationSlot) -> bytes:
            return build_document(
                slot,
                session=session,
                acceptance=acceptance,
                prior=prior,
                decision=decision,
                evidence=evidence,
                margins=DEFAULT_MARGINS,
                run_id=run_id,
            ).to_bytes()

        return store.publish(scope_of(session), run_id, render)


@contextmanager
def run_record(store: Store, session: Session, kind: RunKind) -> Iterator[str]:
    """A run in the store that ends as done, failed or interrupted, whatever happens."""
    run_id = str(uuid4())
    store.begin_run(
        RunRecord(
            run_id=run_id,
            kind=kind,
            started_at=datetime.now(UTC),
            target_name=session.target.name,
            target_fingerprint=session.target.fingerprint,
            device_name=session.device.name,
            device_fingerprint=session.device.fingerprint,
            workload_source=session.workload.source,
            workload_fingerprint=session.workload.fingerprint,
            seed=session.settings.seed,
            dtype=session.target.dtype,
            tuner_version=tuner_version(),
            # With the kernels that were used: another choice later would measure something else.
            settings=session.settings.model_dump(mode="json") | {"backend": session.target.backend},
        )
    )
    try:
        yield run_id
    except (AutotuneError, EngineError, StoreError) as error:
        store.finish_run(run_id, "failed", str(error), datetime.now(UTC))
        raise
    except Exception as error:  # its text may quote a request, which never goes into a store
        reason = f"unexpected {type(error).__name__}"
        store.finish_run(run_id, "failed", reason, datetime.now(UTC))
        raise
    except BaseException:  # a signal: the run is lost, what it measured is kept
        store.finish_run(run_id, "interrupted", "stopped from outside", datetime.now(UTC))
        raise
    store.finish_run(run_id, "done", None, datetime.now(UTC))


def _plan(settings: TuneSettings) -> list[Stage]:
    block_s = 4 * settings.window_s * 1.3
    sizes = len(settings.batch_sizes)
    return [
        Stage("Load the model", 10),
        Stage("Record answers", 0.5 * settings.num_requests),
        Stage("Replay the drafters", 0.8 * settings.num_requests),
        Stage("Time the steps", 25 * sizes),
        Stage(_EXPLORE, sizes * settings.trials * settings.explore_blocks * block_s),
        Stage(_VALIDATE, sizes * settings.validate_blocks * block_s),
    ]


def _known(store: Store, session: Session, progress: Progress) -> dict[Cell, ProposedBy]:
    """What is published now, if this version can read it, and the rules of thumb."""
    latest = store.latest(scope_of(session))
    try:
        published = PublishedConfig.model_validate_json(latest.document) if latest else None
    except ValidationError:
        published = None
        progress.note("what is published now was written by another version: it is not measured")
    methods = {name: spec.method for name, spec in session.specs.items()}
    return known_cells(published, methods, session.settings.batch_sizes)


def _stage(progress: Progress, title: str) -> Callable[[float, str], None]:
    """Moves a stage of the progress, which begins when it is first told something."""
    begun = False

    def told(share: float, text: str) -> None:
        nonlocal begun
        if not begun:
            progress.begin(title)
            begun = True
        progress.update(share, text)

    return told


def _budget(settings: TuneSettings) -> Budget:
    return Budget(
        trials=settings.trials * len(settings.batch_sizes),
        explore_blocks=settings.explore_blocks,
        validate_blocks=settings.validate_blocks,
    )


def _space(settings: TuneSettings, acceptance: AcceptanceProfile) -> SearchSpace:
    temperatures: dict[str, list[float | None]] = {}
    for drafter, temperature in acceptance.profiles:
        temperatures.setdefault(drafter, []).append(temperature)
    return SearchSpace(temperatures, settings.max_num_speculative_tokens)


def _predictions(
    settings: TuneSettings, prior: Prior, arms: list[SpeculativeConfig], run_id: str
) -> Iterator[PredictionRecord]:
    for batch_size in settings.batch_sizes:
        for arm in arms:
            yield PredictionRecord(
                run_id=run_id,
                batch_size=batch_size,
                drafter=arm.drafter,
                num_speculative_tokens=arm.num_speculative_tokens,
                draft_temperature=arm.draft_temperature,
                tokens_per_s=prior.tokens_per_s(arm, batch_size),
                off_tokens_per_s=prior.off_tokens_per_s(batch_size),
                request_std_error=prior.acceptance.log_std_error(arm),
            )

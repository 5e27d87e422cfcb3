"""The main job: record, replay, time, search, validate, decide, publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from autotune.errors import AutotuneError
from autotune.progress import Progress, Stage
from autotune.settings import TuneSettings
from autotune.tuning.acceptance import AcceptanceProfile, acceptance_records, profile_drafters
from autotune.tuning.arms import SearchSpace
from autotune.tuning.blocks import Arm, Ledger
from autotune.tuning.costs import cost_records, measure_costs
from autotune.tuning.paired import PairedBench
from autotune.tuning.prior import Prior
from autotune.tuning.publish import build_document, scope_of, tuner_version
from autotune.tuning.session import Session, open_session
from autotune.tuning.study import Proposal, search
from engine.errors import EngineError
from engine.latency import CostTable
from policies.choose import choose_envelope, finalists
from policies.decide import NO_VALID_TRIAL, decide
from policies.types import (
    DEFAULT_MARGINS,
    OFF_DRAFTER,
    CellEvidence,
    Decision,
    Envelope,
    PairedEstimate,
    SpeculativeConfig,
)
from store.errors import StoreError
from store.records import (
    PredictionRecord,
    Publication,
    PublicationSlot,
    RunKind,
    RunRecord,
)
from store.repository import Store


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
        ledger = Ledger(store, run_id, PairedBench(session, acceptance), acceptance)
        _explore(settings, studies, run_id, acceptance, prior, arms, ledger, progress)
        decision, evidence = _validate(settings, prior, arms, ledger, progress)
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
        *(
            Stage(_search_title(size), settings.trials * settings.explore_blocks * block_s)
            for size in settings.batch_sizes
        ),
        Stage("Validate the best", 1.5 * sizes * settings.validate_blocks * block_s),
    ]


def _search_title(batch_size: int) -> str:
    return f"Search at batch {batch_size}"


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


def _explore(
    settings: TuneSettings,
    studies: Path,
    run_id: str,
    acceptance: AcceptanceProfile,
    prior: Prior,
    arms: list[SpeculativeConfig],
    ledger: Ledger,
    progress: Progress,
) -> None:
    """Let the sampler propose arms at every batch size, and measure them."""
    temperatures: dict[str, list[float | None]] = {}
    for drafter, temperature in acceptance.profiles:
        temperatures.setdefault(drafter, []).append(temperature)
    space = SearchSpace(temperatures, settings.max_num_speculative_tokens)
    for batch_size in settings.batch_sizes:
        progress.begin(_search_title(batch_size))
        measure = _measurer(settings, batch_size, ledger, progress)
        search(
            storage=studies,
            name=f"{run_id}/batch-{batch_size}",
            batch_size=batch_size,
            arms=arms,
            space=space,
            prior=prior,
            trials=settings.trials,
            seed=settings.seed,
            measure=measure,
        )


def _measurer(
    settings: TuneSettings, batch_size: int, ledger: Ledger, progress: Progress
) -> Callable[[Proposal], PairedEstimate | None]:
    done = 0

    def measure(proposal: Proposal) -> PairedEstimate | None:
        nonlocal done
        progress.update(done / settings.trials, proposal.config.label())
        arm = (batch_size, proposal.config)
        measured = ledger.measure(
            arm,
            settings.explore_blocks,
            stage="explore",
            proposed_by="prior" if proposal.proposed_by == "prior" else "sampler",
            trial_number=proposal.trial_number,
        )
        done += 1
        return ledger.estimate(arm, "explore") if measured else None

    return measure


def _validate(
    settings: TuneSettings,
    prior: Prior,
    arms: list[SpeculativeConfig],
    ledger: Ledger,
    progress: Progress,
) -> tuple[Decision, list[CellEvidence]]:
    """Measure the finalists on fresh blocks, then what the idle drafter costs where K is 0."""
    progress.begin("Validate the best")
    explored = _evidence(settings, prior, arms, ledger)
    envelope = choose_envelope(explored)[0].envelope
    chosen = finalists(explored, envelope)
    steps = [(size, _arm(envelope, k)) for size, k in chosen.items() if k is not None]
    _measure_fresh(settings, steps, ledger, progress, 0.0, 0.6)
    evidence = _evidence(settings, prior, arms, ledger)
    decision = decide(evidence, envelope)
    idle = [
        (cell.batch_size, SpeculativeConfig(drafter=envelope.drafter))
        for cell in decision.cells
        if decision.envelope.drafter != OFF_DRAFTER and not cell.chosen.speculates
    ]
    if idle:
        _measure_fresh(settings, idle, ledger, progress, 0.6, 1.0)
        evidence = _evidence(settings, prior, arms, ledger)
        decision = decide(evidence, envelope)
    progress.update(1.0)
    return decision, evidence


def _arm(envelope: Envelope, num_speculative_tokens: int) -> SpeculativeConfig:
    return SpeculativeConfig(
        drafter=envelope.drafter,
        num_speculative_tokens=num_speculative_tokens,
        draft_temperature=envelope.draft_temperature,
    )


def _measure_fresh(
    settings: TuneSettings,
    arms: list[Arm],
    ledger: Ledger,
    progress: Progress,
    start: float,
    end: float,
) -> None:
    for order, (batch_size, config) in enumerate(arms):
        progress.update(
            start + (end - start) * order / len(arms), f"{config.label()} at batch {batch_size}"
        )
        ledger.measure(
            (batch_size, config),
            settings.validate_blocks,
            stage="validate",
            proposed_by="validation",
        )


def _evidence(
    settings: TuneSettings, prior: Prior, arms: list[SpeculativeConfig], ledger: Ledger
) -> list[CellEvidence]:
    """What is known about every arm that was measured, and about every batch size."""
    measured = {*ledger.arms("explore"), *ledger.arms("validate")}
    evidence = [
        CellEvidence(
            batch_size=batch_size,
            config=config,
            explored=ledger.estimate((batch_size, config), "explore"),
            validated=ledger.estimate((batch_size, config), "validate"),
            predicted_tokens_per_s=prior.tokens_per_s(config, batch_size),
        )
        for batch_size, config in sorted(measured, key=lambda arm: (arm[0], arm[1].label()))
    ]
    # A batch size whose trials all failed belongs in the evidence too, without estimates.
    present = {cell.batch_size for cell in evidence}
    evidence += [
        CellEvidence(batch_size=size, config=arms[0])
        for size in settings.batch_sizes
        if size not in present and arms
    ]
    return evidence

"""From a decision and its evidence to the published document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version

from autotune.device.detection import to_document
from autotune.document import (
    Arm,
    Cell,
    CellEvidenceModel,
    DecidedAbout,
    EnvelopeModel,
    Identity,
    Match,
    Policy,
    PublishedConfig,
    Target,
    Workload,
)
from autotune.figures import estimate_of, interval
from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.prior import Prior
from autotune.tuning.session import Session
from policies.schedule import BETWEEN_SIZES
from policies.types import (
    CellDecision,
    CellEvidence,
    Decision,
    Margins,
    Question,
    SpeculativeConfig,
)
from store.records import PublicationSlot

ENGINE_NAME = "spectuned"
_REFRESH_AFTER = timedelta(days=1)
_EXPIRES = timedelta(days=7)


def scope_of(session: Session) -> str:
    """Generations are counted per target, device and source of traffic."""
    target, device = session.target.fingerprint[:16], session.device.fingerprint[:16]
    return f"{target}/{device}/{session.workload.source}"


def tuner_version() -> str:
    """Version of the installed distribution."""
    return version("spectuned")


def build_document(
    slot: PublicationSlot,
    *,
    session: Session,
    acceptance: AcceptanceProfile,
    prior: Prior,
    decision: Decision,
    evidence: Sequence[CellEvidence],
    margins: Margins,
    run_id: str,
) -> PublishedConfig:
    """Assemble the document of one generation.

    Args:
        slot: Epoch, generation and time, given by the store inside its transaction.
        session: What was measured.
        acceptance: Replayed acceptance.
        prior: The model's predictions.
        decision: What was decided.
        evidence: All arms with their estimates.
        margins: Margins of the decision.
        run_id: The run with the blocks behind the figures.
    """
    target, workload, envelope = session.target, session.workload, decision.envelope
    found = {(cell.batch_size, cell.config): cell for cell in evidence}
    spec = session.specs.get(envelope.drafter)
    return PublishedConfig(
        identity=Identity(
            epoch=slot.epoch,
            generation=slot.generation,
            created=slot.created_at,
            refresh_after=slot.created_at + _REFRESH_AFTER,
            expires=slot.created_at + _EXPIRES,
            previous=slot.previous,
            tuner_version=tuner_version(),
        ),
        match=Match(
            target=Target(
                name=target.name,
                fingerprint=target.fingerprint,
                tokenizer_sha256=target.tokenizer_sha256,
                dtype=target.dtype,
                num_parameters=target.num_parameters,
            ),
            device=to_document(session.device),
            engine=ENGINE_NAME,
            engine_version=tuner_version(),
            engine_backend=target.backend,
        ),
        workload=Workload(
            source=workload.source,
            fingerprint=workload.fingerprint,
            num_requests=len(workload.requests),
            share_by_task=workload.share_by_task(),
            share_by_temperature=workload.share_by_temperature(),
        ),
        envelope=EnvelopeModel(
            drafter=envelope.drafter,
            method="none" if spec is None else spec.method,
            max_num_speculative_tokens=envelope.max_num_speculative_tokens,
            draft_temperature=envelope.draft_temperature,
            draft_parameters={} if spec is None else spec.parameters(),
        ),
        schedule=tuple(map(Cell.of, decision.schedule)),
        evidence=tuple(
            _evidence(cell, found, acceptance, prior, margins) for cell in decision.cells
        ),
        policy=Policy(
            hot_margin=margins.hot,
            restart_margin=margins.restart,
            harm_limit=margins.harm,
            confidence=margins.confidence,
            between_sizes=BETWEEN_SIZES,
        ),
        run_id=run_id,
        reason=decision.reason,
        question=_decided_about(decision.question, margins),
    )


def _decided_about(question: Question, margins: Margins) -> DecidedAbout:
    envelope = question.envelope
    return DecidedAbout(
        drafter=envelope.drafter,
        max_num_speculative_tokens=envelope.max_num_speculative_tokens,
        draft_temperature=envelope.draft_temperature,
        candidates={size: Arm.of(arm) for size, arm in question.candidates.items()},
        weights=None if question.weights is None else dict(question.weights),
        tie_margin=margins.tie,
    )


def _evidence(
    cell: CellDecision,
    found: Mapping[tuple[int, SpeculativeConfig], CellEvidence],
    acceptance: AcceptanceProfile,
    prior: Prior,
    margins: Margins,
) -> CellEvidenceModel:
    chosen, candidate, batch_size = cell.chosen, cell.best_candidate, cell.batch_size
    estimate = estimate_of(found, batch_size, chosen)
    best = None if candidate is None else estimate_of(found, batch_size, candidate)
    counts = acceptance.replay(chosen) if chosen.speculates else None
    return CellEvidenceModel(
        batch_size=batch_size,
        drafter=chosen.drafter,
        num_speculative_tokens=chosen.num_speculative_tokens,
        draft_temperature=chosen.draft_temperature,
        status=cell.status.value,
        reason=cell.reason,
        measured=None if estimate is None else interval(estimate, margins.confidence),
        best_candidate=None if candidate is None else Arm.of(candidate),
        best_candidate_measured=None if best is None else interval(best, margins.confidence),
        predicted_tokens_per_s=prior.tokens_per_s(chosen, batch_size),
        predicted_off_tokens_per_s=prior.off_tokens_per_s(batch_size),
        tpot_s_baseline=None if estimate is None else batch_size / estimate.baseline_tokens_per_s,
        tpot_s=None if estimate is None else batch_size / estimate.candidate_tokens_per_s,
        num_accepted_tokens_per_pos=()
        if counts is None
        else tuple(float(n) for n in counts.num_accepted_per_pos.sum(dim=0)),
        num_drafts=None if counts is None else float(counts.num_rounds_by_drafts[:, 1:].sum()),
    )

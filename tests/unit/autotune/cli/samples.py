"""A store filled with made-up records: test data, measured nowhere.

The figures are round on purpose. Off gives 100 tokens/s per request and block; an arm's rate is
written beside its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from autotune.document import (
    Arm,
    Cell,
    CellEvidenceModel,
    EnvelopeModel,
    Identity,
    PublishedConfig,
    Workload,
)
from autotune.figures import interval
from autotune.report.arms import TriedArm, tried_arms
from autotune.settings import TuneSettings
from policies.schedule import BETWEEN_SIZES, build_schedule
from policies.types import CellDecision, CellStatus, SpeculativeConfig
from store.records import (
    AcceptanceRecord,
    MeasurementRecord,
    ProposedBy,
    Publication,
    PublicationSlot,
    Stage,
)
from store.repository import Store
from tests.contract.store_samples import make_failure, make_measurement, make_prediction, make_run
from tests.documents import document

RUN_ID = "6f1e9a34-8c5b-4d0e-9a52-3b7c1d2e4f60"
CREATED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TARGET_FINGERPRINT = "5a" * 32
SCOPE = "test-target/test-device/default"

NGRAM = SpeculativeConfig(drafter="ngram", num_speculative_tokens=3)
IDLE = SpeculativeConfig(drafter="ngram")
SKIP = SpeculativeConfig(drafter="layer-skip-8", num_speculative_tokens=2, draft_temperature=0.7)
FAILED = SpeculativeConfig(drafter="layer-skip-8", num_speculative_tokens=5)

NGRAM_ENVELOPE = EnvelopeModel(
    drafter="ngram",
    method="ngram",
    max_num_speculative_tokens=3,
    draft_parameters={"prompt_lookup_min": 2, "prompt_lookup_max": 4},
)
SKIP_ENVELOPE = EnvelopeModel(
    drafter="layer-skip-8",
    method="layer_skip",
    max_num_speculative_tokens=2,
    draft_temperature=0.7,
    draft_parameters={"num_layers": 8},
)
OFF_ENVELOPE = EnvelopeModel(drafter="off", method="none", max_num_speculative_tokens=0)


def blocks(
    batch_size: int,
    config: SpeculativeConfig,
    tokens_per_s: Iterable[int],
    *,
    stage: Stage = "explore",
    proposed_by: ProposedBy = "sampler",
    trial: int | None = None,
    disturbed: bool = False,
) -> list[MeasurementRecord]:
    """Blocks of one second per arm; unloaded off gives 100 tokens in each."""
    return [
        make_measurement(
            RUN_ID,
            batch_size=batch_size,
            drafter=config.drafter,
            num_speculative_tokens=config.num_speculative_tokens,
            draft_temperature=config.draft_temperature,
            stage=stage,
            trial_number=trial,
            proposed_by=proposed_by,
            block_index=index,
            baseline_tokens=100,
            baseline_s=1.0,
            candidate_tokens=rate,
            candidate_s=1.0,
            disturbed=disturbed,
        )
        for index, rate in enumerate(tokens_per_s)
    ]


LEDGER = [
    *blocks(1, NGRAM, [150, 152, 148], proposed_by="prior", trial=0),
    *blocks(1, NGRAM, [151, 149], trial=3),
    *blocks(1, NGRAM, [149, 151, 150, 150] * 5, stage="validate", proposed_by="validation"),
    *blocks(1, SKIP, [120, 122, 121], trial=1),
    *blocks(1, SKIP, [10], trial=1, disturbed=True),
    *blocks(16, NGRAM, [80, 82, 81], proposed_by="prior", trial=0),
    *blocks(16, NGRAM, [80, 81, 82, 81] * 5, stage="validate", proposed_by="validation"),
    *blocks(16, IDLE, [100, 101, 99, 100] * 5, stage="validate", proposed_by="validation"),
    *blocks(16, SKIP, [104, 106, 105], trial=1),
]
"""N-gram lookup gains half at batch 1 and loses a fifth at 16; layer-skip gains a little."""


def acceptance(config: SpeculativeConfig) -> list[AcceptanceRecord]:
    """Two tasks at two temperatures; sums and averages of ratios differ on purpose."""
    groups = {("chat", 0.0): 100.0, ("chat", 0.7): 300.0, ("code", 0.0): 50.0}
    return [
        AcceptanceRecord(
            run_id=RUN_ID,
            drafter=config.drafter,
            draft_temperature=config.draft_temperature,
            num_speculative_tokens=config.num_speculative_tokens,
            task=task,
            temperature=temperature,
            num_requests=4,
            num_output_tokens=600,
            expected_rounds=rounds,
            tokens_per_round=600 / rounds,
            tokens_per_round_std_error=0.1,
            num_drafts=rounds,
            num_draft_tokens=2 * rounds,
            num_accepted_tokens_per_pos=tuple(
                rounds / 2**position for position in range(1, config.num_speculative_tokens + 1)
            ),
            source="replay",
        )
        for (task, temperature), rounds in groups.items()
    ]


def fill(path: Path, envelope: EnvelopeModel = NGRAM_ENVELOPE, source: str = "default") -> Store:
    """A store with one run, its ledger and one publication; the caller closes it."""
    repo = Store.open(path, clock=lambda: CREATED)
    fill_open(repo, envelope, source)
    return repo


def fill_open(
    repo: Store, envelope: EnvelopeModel = NGRAM_ENVELOPE, source: str = "default"
) -> None:
    """The same in a store that is open."""
    repo.begin_run(
        make_run(
            run_id=RUN_ID,
            workload_source=source,
            settings=TuneSettings().model_dump(mode="json"),
        )
    )
    repo.add_measurements(LEDGER)
    repo.add_failure(
        make_failure(
            RUN_ID,
            batch_size=1,
            drafter=FAILED.drafter,
            num_speculative_tokens=FAILED.num_speculative_tokens,
            draft_temperature=FAILED.draft_temperature,
            reason="logits [that] are not finite",
        )
    )
    for config in (SKIP, NGRAM):  # The best one last, so that the first is not it by chance.
        repo.add_acceptance(acceptance(config))
    repo.add_predictions(
        make_prediction(
            RUN_ID,
            batch_size=size,
            num_speculative_tokens=k,
            tokens_per_s=140.0 + k,
            request_std_error=0.0,
        )
        for size in (1, 16)
        for k in (1, 2, 3)
    )
    publish(repo, envelope, source)


def publish(
    repo: Store,
    envelope: EnvelopeModel,
    source: str = "default",
    target_fingerprint: str = TARGET_FINGERPRINT,
) -> Publication:
    """Add a generation that rests on the run."""

    def render(slot: PublicationSlot) -> bytes:
        return published(slot, envelope, source, target_fingerprint).to_bytes()

    return repo.publish(SCOPE, RUN_ID, render)


def published_config(publication: Publication) -> PublishedConfig:
    """The document of a publication."""
    return PublishedConfig.model_validate_json(publication.document)


def published(
    slot: PublicationSlot,
    envelope: EnvelopeModel = NGRAM_ENVELOPE,
    source: str = "default",
    target_fingerprint: str = TARGET_FINGERPRINT,
) -> PublishedConfig:
    """The document of a generation: the envelope's largest K at batch 1 and none at 16."""
    found = {(arm.batch_size, arm.config): arm for arm in tried_arms(LEDGER)}
    idle = SpeculativeConfig(drafter=envelope.drafter)
    loaded = replace(
        idle,
        num_speculative_tokens=envelope.max_num_speculative_tokens,
        draft_temperature=envelope.draft_temperature,
    )
    decisions = [
        CellDecision(
            batch_size=size,
            chosen=config,
            best_candidate=NGRAM,
            status=CellStatus.VALIDATED if size == 1 else CellStatus.PROVISIONAL,
            reason=f"Made-up reason for batch size {size}.",
        )
        for size, config in ((1, loaded), (16, idle))
    ]
    base = document(envelope, source=source)
    return base.model_copy(
        update={
            "identity": Identity(
                epoch=slot.epoch,
                generation=slot.generation,
                created=slot.created_at,
                refresh_after=slot.created_at + timedelta(days=1),
                expires=slot.created_at + timedelta(days=7),
                previous=slot.previous,
                tuner_version="0.1.0",
            ),
            "match": base.match.model_copy(
                update={
                    "target": base.match.target.model_copy(
                        update={"name": "test-target", "fingerprint": target_fingerprint}
                    )
                }
            ),
            "workload": Workload(
                source=source,
                fingerprint="w" * 64,
                num_requests=12,
                share_by_task={"chat": 0.7, "code": 0.3},
                share_by_temperature={"0": 0.5, "(0,0.8]": 0.5},
            ),
            "schedule": tuple(_cell(cell) for cell in build_schedule(decisions)),
            "evidence": tuple(_evidence(decision, found) for decision in decisions),
            "policy": base.policy.model_copy(update={"between_sizes": BETWEEN_SIZES}),
            "run_id": RUN_ID,
            "reason": f"{envelope.drafter} is a made-up choice.",
        }
    )


def _cell(cell: object) -> Cell:
    return Cell.model_validate(cell, from_attributes=True)


def _evidence(
    decision: CellDecision, found: dict[tuple[int, SpeculativeConfig], TriedArm]
) -> CellEvidenceModel:
    def measured(config: SpeculativeConfig | None) -> object:
        arm = found.get((decision.batch_size, config)) if config else None
        return interval(arm.estimate, 0.95) if arm and arm.estimate else None

    chosen, best = decision.chosen, decision.best_candidate
    status: Literal["validated", "provisional"] = decision.status.value
    return CellEvidenceModel.model_validate(
        {
            "batch_size": decision.batch_size,
            "drafter": chosen.drafter,
            "num_speculative_tokens": chosen.num_speculative_tokens,
            "draft_temperature": chosen.draft_temperature,
            "status": status,
            "reason": decision.reason,
            "measured": measured(chosen),
            "best_candidate": None
            if best is None
            else Arm.model_validate(best, from_attributes=True),
            "best_candidate_measured": measured(best),
            "predicted_tokens_per_s": 143.0,
            "predicted_off_tokens_per_s": 98.0,
            "tpot_s_baseline": None,
            "tpot_s": None,
        }
    )

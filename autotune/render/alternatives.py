"""Other envelopes that the run behind a document measured, in case a server cannot take it.

They are what the search saw and carry its figures: good for choosing among what a server can
express, but picked as the best of several and, as a rule, not measured on fresh blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log1p
from pathlib import Path
from typing import Any, Literal

from autotune.document import Cell, CellEvidenceModel, EnvelopeModel
from autotune.figures import interval
from autotune.render.candidate import Candidate
from autotune.report.arms import TriedArm
from policies.choose import choose_envelope, finalists
from policies.estimate import lower_bound
from policies.schedule import build_schedule
from policies.types import (
    CellDecision,
    CellStatus,
    Envelope,
    ScheduleCell,
    SpeculativeConfig,
)

_LAYER_SKIP = re.compile(r"layer-skip-(\d+)")
_REASON = "the best of this envelope in the search"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterParts:
    """What a serving layer must know of a drafter beside its name.

    Attributes:
        method: As in `EnvelopeModel`.
        parameters: As `EnvelopeModel.draft_parameters`.
    """

    method: Literal["ngram", "layer_skip", "draft_model", "eagle3"]
    parameters: Mapping[str, str | int | float]


def drafter_parts(names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, DrafterParts]:
    """The parts of drafters that a search set up, by name.

    Args:
        names: Drafters; what no search sets up, such as `off`, is left out.
        settings: Settings of the search, as stored with its run.
    """
    # The search's own descriptions; the import takes as long as the engine does.
    from engine.drafters.factory import DrafterSpec, from_folder, layer_skip, ngram
    from engine.errors import CheckpointError

    specs: dict[str, DrafterSpec] = {ngram().name: ngram()}
    for name in names:
        if layers := _LAYER_SKIP.fullmatch(name):
            specs[name] = layer_skip(int(layers[1]))
    for name, folder in (settings.get("drafters") or {}).items():
        with suppress(CheckpointError):  # A folder that is gone cannot be offered.
            specs[name] = from_folder(name, Path(folder))
    return {
        name: DrafterParts(method=specs[name].method, parameters=specs[name].parameters())
        for name in names
        if name in specs
    }


def alternatives(
    arms: Sequence[TriedArm],
    drafters: Mapping[str, DrafterParts],
    *,
    confidence: float,
    hot_margin: float,
    max_num_speculative_tokens: int | None = None,
) -> tuple[Candidate, ...]:
    """Every envelope that the run measured and that is shown to gain somewhere.

    Args:
        arms: The run's ledger.
        drafters: Parts by drafter name; envelopes of other drafters are left out.
        confidence: Confidence of the intervals.
        hot_margin: Gain over off that a cell's lower bound must exceed to speculate: an offer
            keeps the same promise as a publication.
        max_num_speculative_tokens: Largest K to use, or None for what was measured.

    Returns:
        The envelopes in the order of the search's promise. K of each batch size is the best
        explored one within the limit, 0 where its lower bound does not exceed the margin. Every
        cell is provisional.
    """
    allowed = [
        arm
        for arm in arms
        if max_num_speculative_tokens is None
        or arm.config.num_speculative_tokens <= max_num_speculative_tokens
    ]
    evidence = [arm.evidence() for arm in allowed]
    found = {(arm.batch_size, arm.config): arm for arm in allowed}
    candidates = []
    for score in choose_envelope(evidence):
        parts = drafters.get(score.envelope.drafter)
        cells = [
            _cell(size, score.envelope, k or 0)
            for size, k in finalists(evidence, score.envelope).items()
        ]
        alpha = (1 - confidence) / max(len(cells), 1)
        cells = [
            cell
            if _is_shown(found.get((cell.batch_size, cell.chosen)), alpha, hot_margin)
            else _cell(cell.batch_size, score.envelope, 0)
            for cell in cells
        ]
        if parts is not None and any(cell.chosen.speculates for cell in cells):
            candidates.append(_candidate(cells, score.envelope, parts, found, confidence))
    return tuple(candidates)


def _is_shown(arm: TriedArm | None, alpha: float, hot_margin: float) -> bool:
    """True when the arm's lower bound exceeds the margin."""
    estimate = arm.estimate if arm else None
    return estimate is not None and lower_bound(estimate, alpha) > log1p(hot_margin)


def _cell(batch_size: int, envelope: Envelope, num_speculative_tokens: int) -> CellDecision:
    return CellDecision(
        batch_size=batch_size,
        chosen=SpeculativeConfig(
            drafter=envelope.drafter,
            num_speculative_tokens=num_speculative_tokens,
            # A draft temperature has no effect at K = 0, and the idle arm has none.
            draft_temperature=envelope.draft_temperature if num_speculative_tokens else None,
        ),
        best_candidate=None,
        status=CellStatus.PROVISIONAL,
        reason=_REASON if num_speculative_tokens else "no K of this envelope was shown to gain",
    )


def _candidate(
    cells: Sequence[CellDecision],
    envelope: Envelope,
    parts: DrafterParts,
    found: Mapping[tuple[int, SpeculativeConfig], TriedArm],
    confidence: float,
) -> Candidate:
    return Candidate(
        envelope=EnvelopeModel(
            drafter=envelope.drafter,
            method=parts.method,
            max_num_speculative_tokens=max(c.chosen.num_speculative_tokens for c in cells),
            draft_temperature=envelope.draft_temperature,
            draft_parameters=dict(parts.parameters),
        ),
        schedule=tuple(_document_cell(cell) for cell in build_schedule(cells)),
        evidence=tuple(
            _evidence(cell, found.get((cell.batch_size, cell.chosen)), confidence) for cell in cells
        ),
    )


def _document_cell(cell: ScheduleCell) -> Cell:
    return Cell(
        bs_lo=cell.bs_lo,
        bs_hi=cell.bs_hi,
        num_speculative_tokens=cell.num_speculative_tokens,
        off_mode=None if cell.off_mode is None else cell.off_mode.value,
        measured_at=cell.measured_at,
        status=cell.status.value,
    )


def _evidence(cell: CellDecision, arm: TriedArm | None, confidence: float) -> CellEvidenceModel:
    estimate = arm.estimate if arm else None
    baseline, rate = (
        (estimate.baseline_tokens_per_s, estimate.candidate_tokens_per_s)
        if estimate
        else (None, None)
    )
    return CellEvidenceModel(
        batch_size=cell.batch_size,
        drafter=cell.chosen.drafter,
        num_speculative_tokens=cell.chosen.num_speculative_tokens,
        draft_temperature=cell.chosen.draft_temperature,
        status="provisional",
        reason=cell.reason,
        measured=None if estimate is None else interval(estimate, confidence),
        best_candidate=None,
        best_candidate_measured=None,
        predicted_tokens_per_s=arm.predicted_tokens_per_s if arm else None,
        predicted_off_tokens_per_s=None,
        tpot_s_baseline=None if baseline is None else cell.batch_size / baseline,
        tpot_s=None if rate is None else cell.batch_size / rate,
    )

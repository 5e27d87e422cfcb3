"""The decision: whether to load a drafter, and K for every measured batch size.

It follows `policies.choose` and looks at fresh blocks only. Every gain is against speculation
off with no drafter in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies import reasons
from policies.estimate import Total, lower_bound, upper_bound
from policies.evidence import EvidenceTable
from policies.schedule import build_schedule
from policies.types import (
    DEFAULT_MARGINS,
    OFF,
    OFF_DRAFTER,
    CellDecision,
    CellEvidence,
    CellStatus,
    Decision,
    Envelope,
    Margins,
    PairedEstimate,
    Question,
    SpeculativeConfig,
)
from policies.verdict import Assessment, assess

FINALISTS = 2
"""Arms per batch size that may be measured on fresh blocks."""

NO_VALID_TRIAL = "No valid trial."
"""Reason of a decision that has nothing to rest on; the caller should publish nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why the drafter is not loaded.

    Attributes:
        reason: A clause.
        shown: True if the evidence settles it, False if it is only the safe side.
    """

    reason: str
    shown: bool


def decide(
    evidence: Sequence[CellEvidence],
    envelope: Envelope,
    weights: Mapping[int, float] | None = None,
    margins: Margins = DEFAULT_MARGINS,
    candidates: Mapping[int, SpeculativeConfig] | None = None,
) -> Decision:
    """Decide whether to load `envelope`, and K per batch size within it.

    A batch size speculates only if the lower bound of its validated gain exceeds
    `margins.hot`, at a `level` that holds for all arms of the search at once.
    Two further conditions can only turn speculation off. The drafter is not loaded

    - if the weighted gain of the whole table, with the measured cost of the idle drafter at
      K = 0, has a lower bound of `margins.restart` or less, at the same level. The table holds
      the cells that passed, so this sum leans high by part of a standard error; the bound of
      each cell does not depend on it;
    - unless at every batch size with K = 0 the loaded, idle drafter is shown to be at most
      `margins.harm` slower than unloaded off, at level `idle_level`.

    A batch size that stays off is `validated` if its arms are shown not to be worth the
    margin, and `provisional` if that is open.

    Args:
        evidence: All arms of the search with the validated estimates, in any order.
        envelope: What to load, as a rule the first of `choose_envelope`.
        weights: Share of the traffic's time at each batch size; None for uniform.
        margins: Margins of the decision.
        candidates: The arm to decide about at each batch size; None takes the best of those that
            were validated.

    Raises:
        ValueError: An arm occurs twice, or the weights do not fit the evidence.
    """
    table = EvidenceTable.of(evidence)
    question = Question(envelope=envelope, candidates=candidates or {}, weights=weights)
    if not table.has_estimate:
        return _no_valid_trial(table, question)
    shares = table.weights(weights)
    alpha = level(table, margins)
    within = None if envelope.drafter == OFF_DRAFTER else envelope
    found = [
        assess(
            size,
            _of_interest(table.arms(size, within), question.candidates.get(size)),
            alpha,
            margins,
        )
        for size in table.batch_sizes
    ]
    refusal = (
        _Refusal(reason="the search promised no gain from any drafter", shown=False)
        if within is None
        else _refusal(found, table, envelope, shares, alpha, margins)
    )
    if refusal:
        cells = [_unloaded_cell(one, refusal, alpha, margins) for one in found]
        reason = f"No drafter is loaded: {refusal.reason}."
        return _decision(Envelope(), cells, reason, question)
    cells = [_loaded_cell(one, table, envelope, alpha, margins) for one in found]
    total = Total(tuple(_gains(found, table, envelope, shares)))
    return _decision(
        envelope,
        cells,
        f"{envelope.drafter} is loaded: {reasons.total_clause(total, alpha, margins)}.",
        question,
    )


def _of_interest(
    arms: Sequence[CellEvidence], candidate: SpeculativeConfig | None
) -> Sequence[CellEvidence]:
    """The candidate alone, if there is one."""
    return [arm for arm in arms if arm.config == candidate] or arms


def level(table: EvidenceTable, margins: Margins) -> float:
    """Level of the bound of each arm, so that the confidence holds for all of one search.

    Measuring goes on until a question is settled, so the family is fixed beforehand: two arms per
    batch size, or all validated ones if these are more (Bonferroni).
    """
    validated = sum(1 for arm in table.speculating if arm.validated)
    return (1 - margins.confidence) / max(validated, FINALISTS * len(table.batch_sizes))


def idle_level(table: EvidenceTable, margins: Margins) -> float:
    """Level of the bound of each idle cost: all batch sizes at once."""
    return (1 - margins.confidence) / len(table.batch_sizes)


def _gains(
    found: Sequence[Assessment],
    table: EvidenceTable,
    envelope: Envelope,
    shares: Mapping[int, float],
) -> list[tuple[float, PairedEstimate]]:
    """Weight and measured gain of what the table would do at each batch size."""
    gains = [
        (shares[one.batch_size], one.estimate if one.pays else _idle(one, table, envelope))
        for one in found
    ]
    return [(share, estimate) for share, estimate in gains if estimate]


def _idle(one: Assessment, table: EvidenceTable, envelope: Envelope) -> PairedEstimate | None:
    return table.idle(one.batch_size, envelope.drafter)


def _refusal(
    found: Sequence[Assessment],
    table: EvidenceTable,
    envelope: Envelope,
    shares: Mapping[int, float],
    alpha: float,
    margins: Margins,
) -> _Refusal | None:
    harms = [
        harm
        for one in found
        if not one.pays and (harm := _harm(one, table, envelope, margins)) is not None
    ]
    for harm in harms:
        if harm.shown:  # Then nothing else was worth measuring.
            return harm
    if not any(one.pays for one in found):
        reason = f"no batch size is shown to gain more than {100 * margins.hot:g} %"
        return _Refusal(reason=reason, shown=True)
    if harms:
        return harms[0]
    total = Total(tuple(_gains(found, table, envelope, shares)))
    needed = math.log1p(margins.restart)
    if total.lower(alpha) > needed:
        return None
    return _Refusal(
        reason=f"{envelope.drafter} is not worth a restart, since "
        + reasons.total_clause(total, alpha, margins),
        shown=total.upper(alpha) < needed,
    )


def _harm(
    one: Assessment, table: EvidenceTable, envelope: Envelope, margins: Margins
) -> _Refusal | None:
    """What the idle drafter may cost at a batch size with K = 0; None if shown to be little."""
    limit, needed_level = math.log1p(-margins.harm), idle_level(table, margins)
    idle = _idle(one, table, envelope)
    if idle is not None and lower_bound(idle, needed_level) > limit:
        return None
    return _Refusal(
        reason=reasons.harm_clause(one.batch_size, envelope.drafter, idle, margins),
        shown=idle is not None and upper_bound(idle, needed_level) < limit,
    )


def _unloaded_cell(
    one: Assessment, refusal: _Refusal, alpha: float, margins: Margins
) -> CellDecision:
    """Off without a drafter in memory, the baseline itself."""
    clause = reasons.verdict_clause(one, alpha, margins)
    if one.pays:
        status = CellStatus.VALIDATED if refusal.shown else CellStatus.PROVISIONAL
        reason = f"{clause}, but no drafter is loaded: {refusal.reason}."
    else:
        status = one.verdict.status
        reason = f"{clause}, so speculation stays off."
    return _cell(one, OFF, status, reason)


def _loaded_cell(
    one: Assessment, table: EvidenceTable, envelope: Envelope, alpha: float, margins: Margins
) -> CellDecision:
    """K of the arm that pays, or 0."""
    clause = reasons.verdict_clause(one, alpha, margins)
    if one.pays and one.arm:
        return _cell(one, one.arm.config, one.verdict.status, f"{clause}.")
    idle = _idle(one, table, envelope)
    cost = reasons.idle_clause(envelope.drafter, idle, margins)
    config = SpeculativeConfig(
        drafter=envelope.drafter, draft_temperature=envelope.draft_temperature
    )
    status = one.verdict.status
    return _cell(one, config, status, f"{clause}, so speculation stays off; {cost}.")


def _cell(
    one: Assessment, chosen: SpeculativeConfig, status: CellStatus, reason: str
) -> CellDecision:
    validated = one.arm is not None and one.arm.validated is not None
    return CellDecision(
        batch_size=one.batch_size,
        chosen=chosen,
        best_candidate=one.arm.config if one.arm and validated else None,
        status=status,
        reason=reason,
    )


def _no_valid_trial(table: EvidenceTable, question: Question) -> Decision:
    cells = [
        CellDecision(
            batch_size=size,
            chosen=OFF,
            best_candidate=None,
            status=CellStatus.PROVISIONAL,
            reason=NO_VALID_TRIAL,
        )
        for size in table.batch_sizes
    ]
    return _decision(Envelope(), cells, NO_VALID_TRIAL, question)


def _decision(
    envelope: Envelope, cells: Sequence[CellDecision], reason: str, question: Question
) -> Decision:
    """A decision whose envelope is as wide as the cells need."""
    largest = max((cell.chosen.num_speculative_tokens for cell in cells), default=0)
    return Decision(
        envelope=Envelope(
            drafter=envelope.drafter,
            max_num_speculative_tokens=largest,
            draft_temperature=envelope.draft_temperature,
        ),
        cells=tuple(cells),
        schedule=build_schedule(cells),
        reason=reason,
        question=question,
    )

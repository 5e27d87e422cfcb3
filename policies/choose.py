"""The decision: which drafter to load, if any, and K for every measured batch size.

It takes three steps. `choose_envelope` ranks what could be loaded by what the search saw;
`finalists` names the K per batch size that deserves fresh blocks; `decide` looks at those
fresh blocks alone, so that luck in the search cannot be published. Every gain is against
speculation off with no drafter in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies import reasons
from policies.estimate import gain, upper_bound, weighted_sum
from policies.evidence import EvidenceTable, smallest_near_best
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
    SpeculativeConfig,
)
from policies.verdict import Assessment, assess

NO_VALID_TRIAL = "No valid trial."
"""Reason of a decision that has nothing to rest on; the caller should publish nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeScore:
    """What the search promises for one envelope.

    Attributes:
        envelope: What would be loaded. Its largest K is the largest of the best ones.
        log_gain: Weighted sum over batch sizes of the best log gain within the envelope over
            unloaded off, K = 0 included; 0 for off.
    """

    envelope: Envelope
    log_gain: float

    @property
    def gain(self) -> float:
        """The gain as a fraction."""
        return gain(self.log_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why the drafter is not loaded.

    Attributes:
        reason: A clause.
        shown: True if the evidence settles it, False if it is only the safe side.
    """

    reason: str
    shown: bool


def choose_envelope(
    evidence: Sequence[CellEvidence],
    weights: Mapping[int, float] | None = None,
    margins: Margins = DEFAULT_MARGINS,
) -> tuple[EnvelopeScore, ...]:
    """Rank what could be loaded by the gains seen in the search.

    An envelope is a drafter and a draft temperature. At each batch size it is worth its best
    explored K or, if that is better, the loaded drafter at K = 0 (no gain where that was not
    measured).

    Args:
        evidence: All arms of the search, in any order.
        weights: Share of the traffic's time at each batch size; None for uniform.
        margins: Margins of the decision.

    Returns:
        All envelopes, best first, off among them; at equal scores the smaller K, so off.

    Raises:
        ValueError: An arm occurs twice, or the weights do not fit the evidence.
    """
    table = EvidenceTable.of(evidence)
    shares = table.weights(weights)
    kinds = {(arm.config.drafter, arm.config.draft_temperature) for arm in table.speculating}
    largest = max((arm.config.num_speculative_tokens for arm in table.speculating), default=0)
    scores = [EnvelopeScore(envelope=Envelope(), log_gain=0.0)]
    for drafter, temperature in kinds:
        widest = Envelope(
            drafter=drafter, max_num_speculative_tokens=largest, draft_temperature=temperature
        )
        scores.append(_score(table, widest, shares))
    return tuple(sorted(scores, key=_rank))


def finalists(
    evidence: Sequence[CellEvidence], envelope: Envelope, margins: Margins = DEFAULT_MARGINS
) -> dict[int, int | None]:
    """K to measure again on fresh blocks, per batch size.

    Returns:
        The best explored K of the envelope, or a smaller one within `margins.tie` of it; None
        where no K showed a gain.

    Raises:
        ValueError: An arm occurs twice.
    """
    table = EvidenceTable.of(evidence)
    chosen: dict[int, int | None] = {}
    for batch_size in table.batch_sizes:
        faster = _faster(table.arms(batch_size, envelope))
        chosen[batch_size] = (
            smallest_near_best(faster, margins.tie).config.num_speculative_tokens
            if faster
            else None
        )
    return chosen


def decide(
    evidence: Sequence[CellEvidence],
    envelope: Envelope,
    weights: Mapping[int, float] | None = None,
    margins: Margins = DEFAULT_MARGINS,
) -> Decision:
    """Decide whether to load `envelope`, and K per batch size within it.

    A batch size speculates only if the lower bound of its validated gain exceeds
    `margins.hot`. The level of that bound is `1 - margins.confidence` divided by all
    validated drafting arms in the evidence (Bonferroni), so it holds for all of them at once.
    Two further conditions can only turn speculation off. The drafter is not loaded

    - if the weighted gain of the whole table, with the measured cost of the idle drafter at
      K = 0, has a lower bound of `margins.restart` or less, at the same level. The table holds
      the cells that passed, so this sum leans high by part of a standard error; the bound of
      each cell does not depend on it;
    - if at any batch size with K = 0 the loaded, idle drafter is measured more than
      `margins.harm` slower than unloaded off, even where noise could explain it: the promise
      is never to be slower than off. More blocks for the idle arm are the way out.

    A batch size that stays off is `validated` if its arms are shown not to be worth the
    margin, or none was faster in the search, and `provisional` if that is open. With a drafter
    loaded it also needs a measured idle cost.

    Args:
        evidence: All arms of the search with the validated estimates, in any order.
        envelope: What to load, as a rule the first of `choose_envelope`.
        weights: Share of the traffic's time at each batch size; None for uniform.
        margins: Margins of the decision.

    Raises:
        ValueError: An arm occurs twice, or the weights do not fit the evidence.
    """
    table = EvidenceTable.of(evidence)
    shares = table.weights(weights)
    if not table.has_estimate:
        return _no_valid_trial(table)
    family = sum(1 for arm in table.speculating if arm.validated)
    alpha = (1 - margins.confidence) / max(family, 1)
    within = None if envelope.drafter == OFF_DRAFTER else envelope
    found = [assess(size, table.arms(size, within), alpha, margins) for size in table.batch_sizes]
    refusal = (
        _Refusal(reason="no drafter gained enough in the search to be validated", shown=True)
        if within is None
        else _refusal(found, table, envelope, shares, alpha, margins)
    )
    if refusal:
        cells = [_unloaded_cell(one, refusal, alpha, margins) for one in found]
        return _decision(Envelope(), cells, f"No drafter is loaded: {refusal.reason}.")
    cells = [_loaded_cell(one, table, envelope, alpha, margins) for one in found]
    total = weighted_sum(_gains(found, table, envelope, shares))
    return _decision(
        envelope,
        cells,
        f"{envelope.drafter} is loaded: {reasons.total_clause(total, alpha, margins)}.",
    )


def _faster(arms: Sequence[CellEvidence]) -> dict[CellEvidence, PairedEstimate]:
    """The arms that the search found faster than off."""
    return {arm: arm.explored for arm in arms if arm.explored and arm.explored.log_gain > 0}


def _score(table: EvidenceTable, widest: Envelope, shares: Mapping[int, float]) -> EnvelopeScore:
    terms, largest = [], 0
    for batch_size, share in shares.items():
        idle = table.idle(batch_size, widest.drafter)
        explored = [
            (arm.explored.log_gain, arm.config.num_speculative_tokens)
            for arm in table.arms(batch_size, widest)
            if arm.explored
        ]
        best, tokens = max([(idle.log_gain if idle else 0.0, 0), *explored])
        terms.append(share * best)
        largest = max(largest, tokens)
    return EnvelopeScore(
        envelope=Envelope(
            drafter=widest.drafter,
            max_num_speculative_tokens=largest,
            draft_temperature=widest.draft_temperature,
        ),
        log_gain=math.fsum(terms),
    )


def _rank(score: EnvelopeScore) -> tuple[float, int, bool, str, bool, float]:
    envelope = score.envelope
    temperature = envelope.draft_temperature
    return (
        -score.log_gain,
        envelope.max_num_speculative_tokens,
        envelope.drafter != OFF_DRAFTER,
        envelope.drafter,
        temperature is not None,
        temperature or 0.0,
    )


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
    if not any(one.pays for one in found):
        reason = f"no batch size is shown to gain more than {100 * margins.hot:g} %"
        return _Refusal(reason=reason, shown=True)
    limit = math.log1p(-margins.harm)
    for one in found:
        idle = None if one.pays else _idle(one, table, envelope)
        if idle and idle.log_gain < limit:
            return _Refusal(
                reason=reasons.harm_clause(one.batch_size, envelope.drafter, idle, margins),
                shown=upper_bound(idle, alpha) < limit,
            )
    total = weighted_sum(_gains(found, table, envelope, shares))
    needed = math.log1p(margins.restart)
    if total.lower(alpha) > needed:
        return None
    return _Refusal(
        reason=f"{envelope.drafter} is not worth a restart, since "
        + reasons.total_clause(total, alpha, margins),
        shown=total.upper(alpha) < needed,
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
    status = one.verdict.status if idle else CellStatus.PROVISIONAL
    cost = reasons.idle_clause(envelope.drafter, idle, margins)
    config = SpeculativeConfig(
        drafter=envelope.drafter, draft_temperature=envelope.draft_temperature
    )
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


def _no_valid_trial(table: EvidenceTable) -> Decision:
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
    return _decision(Envelope(), cells, NO_VALID_TRIAL)


def _decision(envelope: Envelope, cells: Sequence[CellDecision], reason: str) -> Decision:
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
    )

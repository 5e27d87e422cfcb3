"""The first two steps of a decision: what could be loaded, and what deserves fresh blocks.

`choose_envelope` ranks drafters by what the search saw, and `finalists` names the K per batch
size to measure again. `policies.decide` then looks at those fresh blocks alone, so that luck in
the search cannot be published. Every gain is against speculation off with no drafter in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.estimate import gain
from policies.evidence import EvidenceTable, smallest_near_best
from policies.types import (
    DEFAULT_MARGINS,
    OFF_DRAFTER,
    CellEvidence,
    Envelope,
    Margins,
    PairedEstimate,
)


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


def choose_envelope(
    evidence: Sequence[CellEvidence],
    weights: Mapping[int, float] | None = None,
) -> tuple[EnvelopeScore, ...]:
    """Rank what could be loaded by the gains seen in the search.

    An envelope is a drafter and a draft temperature. At each batch size it is worth its best
    explored K or, if that is better, the loaded drafter at K = 0 (no gain where that was not
    measured).

    Args:
        evidence: All arms of the search, in any order.
        weights: Share of the traffic's time at each batch size; None for uniform.

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

    Args:
        evidence: All arms of the search, in any order.
        envelope: What would be loaded.
        margins: Margins of the decision; only `tie` is used.

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

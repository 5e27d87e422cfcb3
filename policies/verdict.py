"""What the evidence says about speculation at one batch size, whatever is loaded in the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from policies.estimate import lower_bound, upper_bound
from policies.evidence import smallest_near_best
from policies.types import CellEvidence, CellStatus, Margins, PairedEstimate


class Verdict(Enum):
    """The possible outcomes at one batch size; only `PAYS` speculates."""

    PAYS = auto()
    """A validated lower bound lies above the hot margin."""
    DOES_NOT_PAY = auto()
    """Every validated upper bound lies below the hot margin."""
    UNDECIDED = auto()
    """A validated interval holds the hot margin."""
    NOT_VALIDATED = auto()
    """Some arm looked faster in the search and was never measured on fresh blocks."""
    NO_GAIN = auto()
    """Arms were measured in the search and none was faster."""
    NOT_MEASURED = auto()
    """No arm was measured."""

    @property
    def status(self) -> CellStatus:
        """`validated` where the evidence settles the question either way."""
        settled = self in (Verdict.PAYS, Verdict.DOES_NOT_PAY)
        return CellStatus.VALIDATED if settled else CellStatus.PROVISIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A verdict and what it rests on.

    Attributes:
        batch_size: The measured batch size.
        verdict: The outcome.
        arm: The arm that decided it, or None if no arm was measured.
        estimate: That arm's gain over unloaded off: from fresh blocks where it was validated,
            else from the search.
    """

    batch_size: int
    verdict: Verdict
    arm: CellEvidence | None = None
    estimate: PairedEstimate | None = None

    @property
    def pays(self) -> bool:
        """True when the batch size may speculate."""
        return self.verdict is Verdict.PAYS


def assess(
    batch_size: int, arms: Sequence[CellEvidence], alpha: float, margins: Margins
) -> Assessment:
    """Judge the arms of one batch size.

    Args:
        batch_size: The batch size.
        arms: Its drafting arms.
        alpha: Level of each one-sided bound, already adjusted for the family.
        margins: Margins of the decision.
    """
    margin = math.log1p(margins.hot)

    def outcome(verdict: Verdict, among: dict[CellEvidence, PairedEstimate]) -> Assessment:
        arm = smallest_near_best(among, margins.tie)
        return Assessment(batch_size=batch_size, verdict=verdict, arm=arm, estimate=among[arm])

    validated = {arm: arm.validated for arm in arms if arm.validated}
    if validated:
        paying = {a: e for a, e in validated.items() if lower_bound(e, alpha) > margin}
        if paying:
            return outcome(Verdict.PAYS, paying)
        undecided = {a: e for a, e in validated.items() if upper_bound(e, alpha) >= margin}
        if undecided:
            return outcome(Verdict.UNDECIDED, undecided)
        return outcome(Verdict.DOES_NOT_PAY, validated)
    explored = {arm: arm.explored for arm in arms if arm.explored}
    if not explored:
        return Assessment(batch_size=batch_size, verdict=Verdict.NOT_MEASURED)
    faster = {arm: estimate for arm, estimate in explored.items() if estimate.log_gain > 0}
    if faster:
        return outcome(Verdict.NOT_VALIDATED, faster)
    return outcome(Verdict.NO_GAIN, explored)

"""The sentences that `spectune explain` prints: why this, with the numbers."""

from __future__ import annotations

from policies.estimate import Total, confidence_interval, gain, lower_bound
from policies.types import Margins, PairedEstimate
from policies.verdict import Assessment, Verdict


def percent(log_gain: float) -> str:
    """A log gain as a signed percentage, for example `+12.3 %`."""
    return f"{100 * gain(log_gain):+.1f} %"


def compared(log_gain: float) -> str:
    """A log gain in words, for example `12.3 % faster`."""
    change = 100 * gain(log_gain)
    return f"{abs(change):.1f} % {'faster' if change >= 0 else 'slower'}"


def with_interval(estimate: PairedEstimate, confidence: float) -> str:
    """A measured gain in words and its interval."""
    low, high = confidence_interval(estimate, confidence)
    return (
        f"{compared(estimate.log_gain)} than speculation off "
        f"({100 * confidence:g} % interval {percent(low)} to {percent(high)}, "
        f"{estimate.num_blocks} blocks)"
    )


def verdict_clause(assessment: Assessment, alpha: float, margins: Margins) -> str:
    """What was found at a batch size, as a clause that can open a sentence."""
    if assessment.arm is None or assessment.estimate is None:
        return f"No K was measured at batch size {assessment.batch_size}"
    label = assessment.arm.config.label()
    found = with_interval(assessment.estimate, margins.confidence)
    margin = f"the {100 * margins.hot:g} % margin"
    match assessment.verdict:
        case Verdict.PAYS:
            bound = percent(lower_bound(assessment.estimate, alpha))
            return f"{label} is {found}, and its family-wise lower bound {bound} exceeds {margin}"
        case Verdict.DOES_NOT_PAY:
            return f"{label} is {found}, which is shown to be below {margin}"
        case Verdict.UNDECIDED:
            return f"{label} is {found}, which does not show that it exceeds {margin}"
        case Verdict.NOT_VALIDATED:
            return f"{label} was {found} in the search but was not measured on fresh blocks"
        case _:
            return f"No K was faster than off in the search: the best, {label}, was {found}"


def idle_clause(drafter: str, idle: PairedEstimate | None, margins: Margins) -> str:
    """What the loaded drafter costs at K = 0."""
    if idle is None:
        return f"what {drafter} costs here while loaded and idle was not measured"
    return f"loaded and idle, {drafter} is {with_interval(idle, margins.confidence)}"


def harm_clause(
    batch_size: int, drafter: str, idle: PairedEstimate | None, margins: Margins
) -> str:
    """Why an idle drafter forbids an envelope."""
    return (
        f"at batch size {batch_size}, {idle_clause(drafter, idle, margins)}, "
        f"and it is not shown to lose at most {100 * margins.harm:g} %"
    )


def total_clause(total: Total, alpha: float, margins: Margins) -> str:
    """The weighted gain of a whole table against the restart margin."""
    return (
        f"over the weighted batch sizes its table is {compared(total.log_gain)} than speculation "
        f"off (lower bound {percent(total.lower(alpha))}; a restart needs "
        f"{100 * margins.restart:g} %)"
    )

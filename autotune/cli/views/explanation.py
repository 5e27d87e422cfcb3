"""An explanation for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.figures import interval
from autotune.report.arms import TriedArm
from autotune.report.explain import Explanation
from policies.types import PairedEstimate


def print_explanation(console: Console, explanation: Explanation, workload: str) -> None:
    """Print why a batch size got its K, and the candidates behind it."""
    cell = explanation.cell
    console.print(
        f"Batch size {explanation.batch_size}: K = {cell.num_speculative_tokens} ({cell.status}, "
        f"workload: {workload})",
        soft_wrap=True,
    )
    for reason in explanation.reasons:
        console.print(reason, soft_wrap=True)
    for neighbour in explanation.neighbours:
        console.print(f"At batch size {neighbour.batch_size}: {neighbour.reason}", soft_wrap=True)
    if explanation.differences is not None:
        console.print(_recomputed(explanation.differences), soft_wrap=True)
    if explanation.arms:
        console.print()
        print_table(console, candidates_table(explanation))
        for line in _footnotes(explanation):
            console.print(line, soft_wrap=True)


def _recomputed(differences: tuple[str, ...]) -> str:
    if not differences:
        return "Decided again from the stored blocks: the same to the letter."
    return "Decided again from the stored blocks, it is not the same: " + "; ".join(differences)


def candidates_table(explanation: Explanation) -> Table:
    """The candidates that were tried, fastest first; the published one carries a mark."""
    table = new_table(f"Candidates tried at batch size {explanation.batch_size}")
    share = f"{100 * explanation.confidence:g} %"
    add_columns(table, "candidate", "proposed by")
    rates = ("off\ntokens/s", "candidate\ntokens/s", "predicted\ntokens/s")
    add_columns(table, *rates, figures=True)
    for where in ("speed-up in the search", "on fresh blocks"):
        add_columns(table, f"{where}\n({share} interval; blocks)")
    add_columns(table, "problems")
    for arm in explanation.arms:
        estimate = arm.estimate
        table.add_row(
            f"{'> ' if arm.config == explanation.chosen else '  '}{arm.config.label()}",
            _proposers(arm),
            words.rate(estimate.baseline_tokens_per_s if estimate else None),
            words.rate(estimate.candidate_tokens_per_s if estimate else None),
            words.rate(arm.predicted_tokens_per_s),
            _figure(arm.explored, explanation.confidence),
            _figure(arm.validated, explanation.confidence),
            _problems(arm),
        )
    return table


def _figure(estimate: PairedEstimate | None, confidence: float) -> str:
    if estimate is None:
        return words.NONE
    return f"{words.speed_up(interval(estimate, confidence))}; {estimate.num_blocks}"


def _proposers(arm: TriedArm) -> str:
    return ", ".join(f"{who} {times}x" for who, times in arm.num_trials.items()) or words.NONE


def _problems(arm: TriedArm) -> str:
    disturbed = [f"disturbed blocks: {arm.num_disturbed}"] if arm.num_disturbed else []
    against = ["blocks contradict the replay"] if arm.contradicts_replay else []
    return "; ".join([*arm.failures, *disturbed, *against]) or words.NONE


def _footnotes(explanation: Explanation) -> list[str]:
    lines = [
        "Every speed-up is over speculation off, measured in the same blocks. The best of several "
        "flatters itself in the search, so fresh blocks decide. Intervals join the noise between "
        "blocks with the choice of requests. Blocks measure how long rounds take; tokens per round "
        "are those of the replayed answers, unless the blocks contradict them. Rows were measured "
        "at different minutes of the machine: compare speed-ups, which are paired, not rates.",
    ]
    if explanation.num_predicted:
        lines.append(
            f"The model predicted {explanation.num_predicted} arms at this batch size; "
            f"{len(explanation.arms)} were tried."
        )
    if explanation.evidence is not None:
        lines.append("> marks what is published; speculation off has no row of its own.")
    return lines

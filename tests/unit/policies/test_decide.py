"""Decisions from validated evidence."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.betting import is_above
from policies.choose import choose_envelope, finalists
from policies.decide import NO_VALID_TRIAL, decide, idle_level, level
from policies.estimate import paired_estimate
from policies.evidence import EvidenceTable
from policies.types import (
    CellDecision,
    CellEvidence,
    CellStatus,
    Decision,
    Envelope,
    Margins,
    OffMode,
    PairedEstimate,
    SpeculativeConfig,
)
from tests.unit.policies.builders import arm, blocks_from_rates, estimate

DATA = Path(__file__).parents[2] / "data"
NGRAM = Envelope(drafter="ngram", max_num_speculative_tokens=8)
VALIDATED, PROVISIONAL = CellStatus.VALIDATED, CellStatus.PROVISIONAL


def validated(batch_size: int, tokens: int, gain: float, std_error: float = 0.002) -> CellEvidence:
    """An arm with fresh blocks that agree with the search."""
    found = estimate(gain, std_error=std_error)
    return arm(batch_size, tokens, explored=found, validated=found)


def idle(batch_size: int, gain: float, std_error: float = 0.002) -> CellEvidence:
    """The loaded drafter at K = 0."""
    return arm(batch_size, 0, explored=estimate(gain, std_error=std_error))


def published(decision: Decision) -> dict[int, int]:
    """K per measured batch size."""
    return {cell.batch_size: cell.chosen.num_speculative_tokens for cell in decision.cells}


def at(decision: Decision, batch_size: int) -> CellDecision:
    """The decision at one batch size."""
    return next(cell for cell in decision.cells if cell.batch_size == batch_size)


def run_through(explored: dict[int, dict[int, PairedEstimate]]) -> Decision:
    """Search results by batch size and K -> ranking -> finalists on the same blocks -> decision.

    An idle drafter costs nothing.
    """
    evidence = [
        arm(batch_size, tokens, explored=found)
        for batch_size, by_tokens in explored.items()
        for tokens, found in by_tokens.items()
    ]
    envelope = choose_envelope(evidence)[0].envelope
    chosen = finalists(evidence, envelope)
    measured_again = [
        replace(cell, validated=cell.explored)
        if chosen[cell.batch_size] == cell.config.num_speculative_tokens
        else cell
        for cell in evidence
    ]
    return decide([*measured_again, *(idle(size, 0.0) for size in explored)], envelope)


def case_estimates(rows: list[dict[str, Any]]) -> dict[int, dict[int, PairedEstimate]]:
    """Pair the repeats of each arm with those of speculation off at the same batch size.

    Their number was fixed beforehand: Student's t bounds them.
    """
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        rates[row["batch_size"], row["k"]].append(row["tokens_per_s"])
    found: dict[int, dict[int, PairedEstimate]] = defaultdict(dict)
    for (batch_size, tokens), repeats in rates.items():
        if tokens:
            blocks = blocks_from_rates(rates[batch_size, 0], repeats)
            found[batch_size][tokens] = replace(paired_estimate(blocks), log_ratios=())
    return found


def test_off_wins_at_the_large_batch() -> None:
    """B1: K = 4 alone, K = 2 at batch 8, and off at 32 where speculation is slower."""
    case = json.loads((DATA / "B1_off_wins_at_large_batch.json").read_text())
    decision = run_through(case_estimates(case["rows"]))
    expected = {
        int(size): 0 if best == "off" else best["k"] for size, best in case["expected"].items()
    }
    assert published(decision) == expected == {1: 4, 8: 2, 32: 0}
    assert decision.envelope == Envelope(drafter="ngram", max_num_speculative_tokens=4)
    assert [(cell.bs_lo, cell.num_speculative_tokens) for cell in decision.schedule] == [
        (1, 4),
        (2, 2),
        (8, 2),
        (9, 0),
        (32, 0),
        (33, 0),
    ]


def test_a_larger_k_can_halve_the_speed() -> None:
    """B3: with K = 2 fastest and K = 10 half as fast, K = 2 is published."""
    gains = {1: 0.15, 2: 0.30, 3: 0.20, 10: -0.35}
    decision = run_through({1: {tokens: estimate(gain) for tokens, gain in gains.items()}})
    assert published(decision) == {1: 2}
    assert decision.envelope.max_num_speculative_tokens == 2


def test_a_clear_gain_speculates() -> None:
    """A validated gain far above both margins is published with its numbers."""
    decision = decide([validated(1, 3, 0.25)], NGRAM)
    (only,) = decision.cells
    assert only.chosen == only.best_candidate
    assert (only.chosen.num_speculative_tokens, only.status) == (3, VALIDATED)
    assert only.reason == (
        "ngram K=3 is 25.0 % faster than speculation off (95 % interval +24.5 % to +25.5 %, "
        "30 blocks), and its family-wise lower bound +24.5 % exceeds the 1 % margin."
    )
    assert decision.reason == (
        "ngram is loaded: over the weighted batch sizes its table is 25.0 % faster than "
        "speculation off (lower bound +24.5 %; a restart needs 3 %)."
    )


def test_luck_in_the_search_is_not_evidence() -> None:
    """A gain seen only while searching leaves the cell off and provisional."""
    evidence = [arm(1, 3, explored=estimate(0.5)), validated(4, 2, 0.3), idle(1, 0.0)]
    cell = at(decide(evidence, NGRAM), 1)
    assert (cell.chosen.num_speculative_tokens, cell.status) == (0, PROVISIONAL)
    assert cell.best_candidate is None
    assert "was not measured on fresh blocks" in cell.reason


def test_an_open_interval_stays_off() -> None:
    """A gain of 8 % that could be nothing is not speculated on, and marked provisional."""
    evidence = [validated(1, 3, 0.3), validated(4, 2, 0.08, std_error=0.04), idle(4, 0.0)]
    cell = at(decide(evidence, NGRAM), 4)
    assert (cell.chosen.num_speculative_tokens, cell.status) == (0, PROVISIONAL)
    assert cell.best_candidate is not None
    assert "does not show that it exceeds the 1 % margin" in cell.reason


def test_a_shown_loss_is_validated_off() -> None:
    """A candidate whose upper bound lies below the margin settles the cell."""
    evidence = [validated(1, 3, 0.3), validated(4, 2, -0.1), idle(4, 0.0)]
    cell = at(decide(evidence, NGRAM), 4)
    assert (cell.chosen.num_speculative_tokens, cell.status) == (0, VALIDATED)
    assert "10.0 % slower" in cell.reason
    assert "shown to be below the 1 % margin" in cell.reason


def test_no_gain_in_the_search_is_provisional() -> None:
    """Where no K was faster in the search off is the safe side, but nothing was shown."""
    evidence = [validated(1, 3, 0.3), arm(16, 1, explored=estimate(-0.2)), idle(16, 0.002)]
    cell = at(decide(evidence, NGRAM), 16)
    assert (cell.chosen.num_speculative_tokens, cell.status) == (0, PROVISIONAL)
    assert cell.reason.startswith("No K was faster than off in the search: the best, ngram K=1,")
    assert "loaded and idle, ngram is 0.2 % faster than speculation off" in cell.reason


def test_an_unmeasured_idle_cost_refuses_the_envelope() -> None:
    """K = 0 with a drafter loaded is not off: without its own figure nothing is loaded."""
    decision = decide([validated(1, 3, 0.3), arm(16, 1, explored=estimate(-0.2))], NGRAM)
    assert decision.envelope == Envelope()
    assert published(decision) == {1: 0, 16: 0}
    assert at(decision, 1).status is PROVISIONAL
    assert "at batch size 16, what ngram costs here while loaded and idle was not measured" in (
        decision.reason
    )


def test_a_size_without_measurements_stays_off() -> None:
    """All trials of one batch size failed: it is off and says so."""
    cell = at(decide([validated(1, 3, 0.3), arm(4, 2), idle(4, 0.0)], NGRAM), 4)
    assert (cell.chosen.num_speculative_tokens, cell.status) == (0, PROVISIONAL)
    assert cell.reason.startswith("No K was measured at batch size 4")


def test_the_smaller_of_two_validated_ties_wins() -> None:
    """K = 2 within 1 % of K = 5 is published."""
    assert published(decide([validated(1, 5, 0.30), validated(1, 2, 0.295)], NGRAM)) == {1: 2}


def test_a_family_needs_stronger_evidence() -> None:
    """An arm that passes alone does not pass as one of forty comparisons."""
    close = validated(1, 3, 0.055, std_error=0.02)
    margins = Margins(restart=0.0)
    assert published(decide([close], NGRAM, margins=margins)) == {1: 3}
    others = [one for size in range(2, 41) for one in (validated(size, 2, -0.2), idle(size, 0.0))]
    decision = decide([close, *others], NGRAM, margins=margins)
    assert published(decision)[1] == 0
    assert "does not show that it exceeds the 1 % margin" in at(decision, 1).reason


def test_arms_of_other_envelopes_belong_to_the_family() -> None:
    """Validating several drafters and publishing one is still one search."""
    close = validated(1, 3, 0.055, std_error=0.02)
    others = [arm(1, tokens, validated=estimate(-0.2), drafter="draft") for tokens in range(1, 40)]
    decision = decide([close, *others], NGRAM, margins=Margins(restart=0.0))
    assert published(decision) == {1: 0}


def test_a_small_total_is_not_worth_a_restart() -> None:
    """A validated 2 % beats the hot margin but not the restart margin."""
    decision = decide([validated(1, 3, 0.02)], NGRAM)
    assert decision.envelope == Envelope()
    assert {cell.off_mode for cell in decision.schedule} == {OffMode.UNLOAD}
    assert at(decision, 1).status is VALIDATED
    assert "ngram is not worth a restart" in decision.reason
    assert "a restart needs 3 %" in at(decision, 1).reason


def test_an_open_total_is_provisional() -> None:
    """Where the total straddles the restart margin, the unloaded cell is provisional."""
    decision = decide([validated(1, 3, 0.05, std_error=0.013)], NGRAM)
    assert decision.envelope == Envelope()
    assert at(decision, 1).status is PROVISIONAL


def test_weights_decide_whether_a_restart_pays() -> None:
    """The same gain at batch 1 is worth a restart only if the traffic is there."""
    evidence = [validated(1, 3, 0.10), validated(64, 3, -0.3), idle(64, 0.0)]
    assert decide(evidence, NGRAM, {1: 1, 64: 1}).envelope.drafter == "ngram"
    assert decide(evidence, NGRAM, {1: 1, 64: 9}).envelope.drafter == "off"


def test_idle_cost_is_part_of_the_total() -> None:
    """An idle loss within the harm limit still counts against the restart."""
    evidence = [validated(1, 3, 0.075), validated(64, 3, -0.3)]
    assert decide([*evidence, idle(64, 0.0, 0.0001)], NGRAM).envelope.drafter == "ngram"
    decision = decide([*evidence, idle(64, -0.009, 0.0001)], NGRAM)
    assert decision.envelope.drafter == "off"
    assert "ngram is not worth a restart" in decision.reason


def test_a_shown_idle_loss_beyond_the_limit_refuses_the_envelope() -> None:
    """More than 1 % lost at one size unloads the drafter."""
    evidence = [validated(1, 3, 0.8), validated(64, 3, -0.3), idle(64, -0.03, 0.002)]
    decision = decide(evidence, NGRAM)
    assert decision.envelope == Envelope()
    assert published(decision) == {1: 0, 64: 0}
    assert at(decision, 1).status is VALIDATED
    assert "at batch size 64, loaded and idle, ngram is 3.0 % slower" in decision.reason
    assert "it is not shown to lose at most 1 %" in at(decision, 1).reason


@pytest.mark.parametrize(("std_error", "drafter"), [(0.001, "ngram"), (0.02, "off")])
def test_an_idle_cost_that_noise_hides_refuses_the_envelope(std_error: float, drafter: str) -> None:
    """An idle loss of 0.5 % is harmless, but that must be shown; until then off is provisional."""
    evidence = [validated(1, 3, 0.8), validated(64, 3, -0.3), idle(64, -0.005, std_error)]
    decision = decide(evidence, NGRAM)
    assert decision.envelope.drafter == drafter
    if drafter == "off":
        assert at(decision, 1).status is PROVISIONAL
        assert "it is not shown to lose at most 1 %" in decision.reason
    else:
        assert published(decision) == {1: 3, 64: 0}
        assert at(decision, 64).status is VALIDATED


def test_idle_costs_have_a_family_of_their_own() -> None:
    """The bound of an idle cost holds for all batch sizes at once, whatever arms there are."""
    few = [validated(1, 3, 0.8), validated(64, 3, -0.3), idle(64, -0.005, 0.0018)]
    assert decide(few, NGRAM).envelope.drafter == "ngram"
    many_arms = [arm(1, k, validated=estimate(-0.2), drafter="draft") for k in range(1, 40)]
    assert decide([*few, *many_arms], NGRAM).envelope.drafter == "ngram"
    many_sizes = [
        one for size in range(2, 40) for one in (validated(size, 2, -0.2), idle(size, 0.0, 0.0))
    ]
    margins = Margins(restart=0.0)
    decision = decide([*few, *many_sizes], NGRAM, margins=margins)
    assert decision.envelope.drafter == "off"
    assert "at batch size 64, loaded and idle" in decision.reason


@pytest.mark.parametrize(
    ("num_sizes", "num_arms", "denominator", "idle_denominator"),
    [(1, 1, 2, 1), (4, 1, 8, 4), (4, 8, 8, 4), (4, 9, 9, 4), (1, 6, 6, 1)],
)
def test_the_family_is_two_arms_per_batch_size(
    num_sizes: int, num_arms: int, denominator: int, idle_denominator: int
) -> None:
    """Fixed before anything is measured; more validated arms than that make it larger."""
    evidence = [arm(size, 0, explored=estimate(0.0)) for size in range(1, num_sizes + 1)]
    evidence += [arm(1, k, validated=estimate(0.1)) for k in range(1, num_arms + 1)]
    table, margins = EvidenceTable.of(evidence), Margins(confidence=0.9)
    assert level(table, margins) == pytest.approx(0.1 / denominator)
    assert idle_level(table, margins) == pytest.approx(0.1 / idle_denominator)


def test_arms_that_were_only_explored_are_not_in_the_family() -> None:
    """They claim nothing."""
    evidence = [arm(1, k, explored=estimate(0.1)) for k in range(1, 9)]
    assert level(EvidenceTable.of(evidence), Margins()) == pytest.approx(0.05 / 2)


def test_the_candidate_is_decided_about() -> None:
    """Of several validated arms it alone counts; without one the best of them does."""
    evidence = [validated(1, 2, 0.295), validated(1, 5, 0.30), validated(1, 6, 0.5)]
    candidate = SpeculativeConfig(drafter="ngram", num_speculative_tokens=5)
    assert published(decide(evidence, NGRAM, candidates={1: candidate})) == {1: 5}
    assert published(decide(evidence, NGRAM)) == {1: 6}
    assert published(decide(evidence, NGRAM, candidates={})) == {1: 6}


def test_a_candidate_that_does_not_pay_is_not_replaced() -> None:
    """It was fixed before its fresh blocks: another arm may not step in because it looks better."""
    evidence = [validated(1, 2, 0.3), validated(1, 5, -0.1), idle(1, 0.0)]
    candidate = SpeculativeConfig(drafter="ngram", num_speculative_tokens=5)
    decision = decide(evidence, NGRAM, candidates={1: candidate})
    assert published(decision) == {1: 0}
    assert at(decision, 1).best_candidate == candidate
    assert at(decision, 1).status is VALIDATED


def test_a_candidate_without_evidence_changes_nothing() -> None:
    """Of another envelope, or never measured: the arms that are there count."""
    evidence = [validated(1, 2, 0.3), validated(4, 2, 0.3)]
    other = SpeculativeConfig(drafter="draft", num_speculative_tokens=2)
    assert published(decide(evidence, NGRAM, candidates={1: other})) == {1: 2, 4: 2}


def test_an_idle_loss_that_is_shown_is_told_first() -> None:
    """It ends the measuring of an envelope, so its arms have no fresh blocks to show for it."""
    evidence = [arm(1, 3, explored=estimate(0.8)), arm(64, 3, explored=estimate(-0.3))]
    decision = decide([*evidence, idle(64, -0.03)], NGRAM)
    assert "at batch size 64, loaded and idle, ngram is 3.0 % slower" in decision.reason
    unsettled = decide([*evidence, idle(64, -0.03, 0.05)], NGRAM)
    assert unsettled.reason == "No drafter is loaded: no batch size is shown to gain more than 1 %."


def test_blocks_that_are_known_bound_at_any_time() -> None:
    """The same figures with their blocks: the betting bound of the family's level decides."""
    blocks = blocks_from_rates([100.0] * 12, [106, 104, 107, 103, 106, 104] * 2)
    found = paired_estimate(blocks)
    margins = Margins(restart=0.0)
    evidence = [arm(1, 3, validated=found)]
    shown = is_above(found.log_ratios, math.log1p(0.01), 0.05 / 2)
    assert shown
    assert published(decide(evidence, NGRAM, margins=margins)) == {1: 3}
    strict = [*evidence, *(arm(1, k, validated=estimate(-0.2)) for k in range(4, 44))]
    assert not is_above(found.log_ratios, math.log1p(0.01), 0.05 / 41)
    assert published(decide(strict, NGRAM, margins=margins)) == {1: 0}


def test_the_harm_limit_can_be_set() -> None:
    """An operator who accepts 5 % gets the drafter."""
    evidence = [validated(1, 3, 0.8), validated(64, 3, -0.3), idle(64, -0.03)]
    assert decide(evidence, NGRAM, margins=Margins(harm=0.05)).envelope.drafter == "ngram"


def test_an_idle_cost_where_the_size_speculates_is_no_harm() -> None:
    """K = 0 is not published at batch 1, so what it would cost there does not count."""
    assert published(decide([validated(1, 3, 0.8), idle(1, -0.2)], NGRAM)) == {1: 3}


def test_fresh_idle_blocks_replace_those_of_the_search() -> None:
    """A validated idle estimate wins over the explored one of the same arm."""
    lucky = arm(64, 0, explored=estimate(-0.05), validated=estimate(0.0))
    evidence = [validated(1, 3, 0.8), validated(64, 3, -0.3), lucky]
    assert decide(evidence, NGRAM).envelope.drafter == "ngram"
    harmful = arm(64, 0, explored=estimate(0.0), validated=estimate(-0.05))
    assert decide([*evidence[:2], harmful], NGRAM).envelope.drafter == "off"


def test_nothing_pays() -> None:
    """Without a single paying size nothing is loaded, and the reason says why."""
    decision = decide([validated(1, 3, -0.1), validated(4, 2, -0.2)], NGRAM)
    assert decision.envelope == Envelope()
    assert decision.reason == (
        "No drafter is loaded: no batch size is shown to gain more than 1 %."
    )
    assert {cell.status for cell in decision.cells} == {VALIDATED}


def test_off_can_be_the_envelope() -> None:
    """When the search promises nothing off is taken without validation, provisionally."""
    evidence = [arm(1, 2, explored=estimate(-0.1)), arm(1, 2, explored=estimate(-0.2), drafter="d")]
    decision = decide(evidence, choose_envelope(evidence)[0].envelope)
    assert decision.envelope == Envelope()
    assert decision.reason == "No drafter is loaded: the search promised no gain from any drafter."
    assert (at(decision, 1).status, at(decision, 1).best_candidate) == (PROVISIONAL, None)


@pytest.mark.parametrize("evidence", [[], [arm(1, 2), arm(4, 0)]], ids=["no trial", "all failed"])
def test_no_valid_trial(evidence: list[CellEvidence]) -> None:
    """D7: when every trial failed the decision is off, provisional, and names the cause."""
    decision = decide(evidence, choose_envelope(evidence)[0].envelope)
    assert decision.reason == NO_VALID_TRIAL
    assert published(decision) == {cell.batch_size: 0 for cell in evidence}
    assert {cell.status for cell in decision.schedule} == {PROVISIONAL}
    assert {cell.off_mode for cell in decision.schedule} == {OffMode.UNLOAD}


@pytest.mark.parametrize(
    ("name", "value"), [("hot", -0.01), ("harm", 1.0), ("tie", float("nan")), ("confidence", 0.5)]
)
def test_margins_without_meaning_are_refused(name: str, value: float) -> None:
    """Margins are fractions, and a confidence of one half or less is none."""
    with pytest.raises(ValueError, match=name):
        Margins(**{name: value})

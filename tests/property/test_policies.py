"""Properties that hold for every input of the pure decisions."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import choose_envelope, finalists
from policies.counters import SpecDecodeCounters
from policies.decide import decide
from policies.estimate import lower_bound, paired_estimate
from policies.schedule import build_schedule, k_for
from policies.student_t import upper_quantile, upper_tail
from policies.types import Block, CellEvidence, CellStatus, Envelope, Margins, PairedEstimate
from tests.unit.policies.builders import arm, cell, estimate

examples = settings(max_examples=120, deadline=None, derandomize=True)

estimates = st.builds(
    lambda gain, std_error, num_blocks: estimate(gain, std_error=std_error, num_blocks=num_blocks),
    st.floats(-0.5, 1.0),
    st.floats(0.0, 0.1),
    st.integers(2, 60),
)
maybe_estimates = st.none() | estimates
arms = st.builds(
    lambda batch_size, tokens, explored, validated, drafter, temperature: arm(
        batch_size,
        tokens,
        explored=explored,
        validated=validated,
        drafter=drafter,
        draft_temperature=temperature,
    ),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 4),
    maybe_estimates,
    maybe_estimates,
    st.sampled_from(["ngram", "draft"]),
    st.sampled_from([None, 0.7]),
)
searches = st.lists(arms, max_size=25, unique_by=lambda one: (one.batch_size, one.config))
margin_sets = st.builds(
    Margins,
    hot=st.sampled_from([0.0, 0.01, 0.05]),
    restart=st.sampled_from([0.0, 0.03]),
    harm=st.sampled_from([0.01, 0.5]),
    confidence=st.sampled_from([0.6, 0.95]),
)
block_lists = st.lists(
    st.builds(
        Block,
        baseline_tokens=st.integers(1, 10**6),
        baseline_s=st.floats(1e-3, 1e3),
        candidate_tokens=st.integers(1, 10**6),
        candidate_s=st.floats(1e-3, 1e3),
    ),
    min_size=2,
    max_size=12,
)


def envelope_of(drafter: str) -> Envelope:
    """An envelope wide enough for every generated K."""
    return Envelope(drafter=drafter, max_num_speculative_tokens=4)


@examples
@given(
    st.dictionaries(st.integers(1, 300), st.integers(0, 8), min_size=1, max_size=8),
    st.integers(1, 400),
)
def test_schedule_covers_every_size_once(measured: dict[int, int], batch_size: int) -> None:
    """Cells are contiguous from 1 to an open tail, so each size lies in exactly one."""
    schedule = build_schedule([cell(size, tokens) for size, tokens in measured.items()])
    assert schedule[0].bs_lo == 1
    assert schedule[-1].bs_hi is None
    assert all(
        before.bs_hi is not None and after.bs_lo == before.bs_hi + 1
        for before, after in pairwise(schedule)
    )
    holding = [
        one
        for one in schedule
        if one.bs_lo <= batch_size and (one.bs_hi is None or batch_size <= one.bs_hi)
    ]
    assert [one.num_speculative_tokens for one in holding] == [k_for(schedule, batch_size)]


@examples
@given(st.dictionaries(st.integers(1, 60), st.integers(0, 8), min_size=1, max_size=6))
def test_schedule_never_exceeds_its_neighbours(measured: dict[int, int]) -> None:
    """Measured sizes keep their K, sizes between take no more than either side, beyond is 0."""
    schedule = build_schedule([cell(size, tokens) for size, tokens in measured.items()])
    sizes = sorted(measured)
    for batch_size in range(1, sizes[-1] + 3):
        below = [measured[size] for size in sizes if size <= batch_size]
        above = [measured[size] for size in sizes if size >= batch_size]
        sides = [*below[-1:], *above[:1]] if above else [0]
        assert k_for(schedule, batch_size) == min(sides)
    for one in schedule:
        assert (one.measured_at is None) == (one.bs_lo not in measured)
        assert (one.off_mode is None) == (one.num_speculative_tokens > 0)


@examples
@given(searches, st.sampled_from(["ngram", "draft", "off"]), margin_sets)
def test_no_size_speculates_without_its_bound(
    evidence: list[CellEvidence], drafter: str, margins: Margins
) -> None:
    """Whatever the evidence, a speculating cell's family-wise lower bound exceeds the margin."""
    decision = decide(evidence, envelope_of(drafter), margins=margins)
    family = max(
        sum(one.validated is not None for one in evidence if one.config.speculates),
        2 * len({one.batch_size for one in evidence}),
    )
    known = {(one.batch_size, one.config): one.validated for one in evidence}
    for one in decision.cells:
        if one.chosen.speculates:
            validated = known[one.batch_size, one.chosen]
            assert validated is not None
            bound = lower_bound(validated, (1 - margins.confidence) / family)
            assert bound > math.log1p(margins.hot)
            assert (one.best_candidate, one.status) == (one.chosen, CellStatus.VALIDATED)


@examples
@given(searches, st.sampled_from(["ngram", "draft"]), margin_sets)
def test_no_drafter_is_loaded_whose_idle_cost_is_not_shown(
    evidence: list[CellEvidence], drafter: str, margins: Margins
) -> None:
    """Wherever K is 0 in a loaded table, some measurement bounds what the idle drafter costs."""
    decision = decide(evidence, envelope_of(drafter), margins=margins)
    if decision.envelope.drafter == "off":
        return
    alpha = (1 - margins.confidence) / len({one.batch_size for one in evidence})
    for one in decision.cells:
        if not one.chosen.speculates:
            estimates = [
                found.validated or found.explored
                for found in evidence
                if (found.batch_size, found.config.drafter) == (one.batch_size, drafter)
                and not found.config.speculates
            ]
            bounds = [lower_bound(found, alpha) for found in estimates if found]
            assert max(bounds) > math.log1p(-margins.harm)


@examples
@given(searches, margin_sets, st.data())
def test_a_candidate_is_published_or_nothing(
    evidence: list[CellEvidence], margins: Margins, data: st.DataObject
) -> None:
    """Where a validated arm is the candidate of a batch size no other one speculates there."""
    validated = [
        one
        for one in evidence
        if one.config.speculates
        and one.validated
        and (one.config.drafter, one.config.draft_temperature) == ("ngram", None)
    ]
    candidates = {
        size: data.draw(st.sampled_from([a.config for a in validated if a.batch_size == size]))
        for size in sorted({one.batch_size for one in validated})
    }
    decision = decide(evidence, envelope_of("ngram"), margins=margins, candidates=candidates)
    for one in decision.cells:
        if one.chosen.speculates and one.batch_size in candidates:
            assert one.chosen == candidates[one.batch_size]


@examples
@given(searches, st.sampled_from(["ngram", "draft", "off"]), margin_sets)
def test_decisions_are_consistent(
    evidence: list[CellEvidence], drafter: str, margins: Margins
) -> None:
    """Cells, schedule and envelope agree on what is loaded and on the largest K."""
    decision = decide(evidence, envelope_of(drafter), margins=margins)
    tokens = [one.chosen.num_speculative_tokens for one in decision.cells]
    assert decision.envelope.max_num_speculative_tokens == max(tokens, default=0)
    assert {one.chosen.drafter for one in decision.cells} <= {decision.envelope.drafter}
    assert decision.envelope.drafter in {"off", drafter}
    assert (decision.envelope.drafter == "off") == (max(tokens, default=0) == 0)
    assert [one.batch_size for one in decision.cells] == sorted(
        {one.batch_size for one in evidence}
    )
    for one in decision.cells:
        assert k_for(decision.schedule, one.batch_size) == one.chosen.num_speculative_tokens
    assert all(one.reason.endswith(".") for one in decision.cells)


@examples
@given(searches, st.randoms(use_true_random=False))
def test_the_order_of_the_evidence_is_irrelevant(
    evidence: list[CellEvidence], random: Random
) -> None:
    """Ranking, finalists and decision are the same for every order of the same evidence."""
    shuffled = list(evidence)
    random.shuffle(shuffled)
    assert choose_envelope(shuffled) == choose_envelope(evidence)
    envelope = choose_envelope(evidence)[0].envelope
    assert finalists(shuffled, envelope) == finalists(evidence, envelope)
    assert decide(shuffled, envelope) == decide(evidence, envelope)


@examples
@given(searches)
def test_finalists_are_measured_gains_within_the_envelope(evidence: list[CellEvidence]) -> None:
    """A finalist is an explored arm of the envelope that was faster than off."""
    for score in choose_envelope(evidence):
        envelope = score.envelope
        for batch_size, tokens in finalists(evidence, envelope).items():
            if tokens is not None:
                (found,) = (
                    one.explored
                    for one in evidence
                    if one.batch_size == batch_size
                    and one.config.num_speculative_tokens == tokens
                    and one.config.drafter == envelope.drafter
                    and one.config.draft_temperature == envelope.draft_temperature
                )
                assert found is not None
                assert found.log_gain > 0
                assert 0 < tokens <= envelope.max_num_speculative_tokens


@examples
@given(block_lists, st.randoms(use_true_random=False))
def test_estimates_ignore_order_and_mirror(blocks: list[Block], random: Random) -> None:
    """Shuffled blocks give the same estimate, swapped arms the negated one."""
    found = paired_estimate(blocks)
    shuffled = list(blocks)
    random.shuffle(shuffled)
    assert_close(paired_estimate(shuffled), found.log_gain, found.std_error)
    swapped = [
        Block(
            baseline_tokens=block.candidate_tokens,
            baseline_s=block.candidate_s,
            candidate_tokens=block.baseline_tokens,
            candidate_s=block.baseline_s,
        )
        for block in blocks
    ]
    assert_close(paired_estimate(swapped), -found.log_gain, found.std_error)


def assert_close(found: PairedEstimate, log_gain: float, std_error: float) -> None:
    """Equal up to rounding."""
    assert found.log_gain == pytest.approx(log_gain, rel=1e-9, abs=1e-9)
    assert found.std_error == pytest.approx(std_error, rel=1e-9, abs=1e-9)


@examples
@given(st.floats(1e-10, 0.49), st.floats(1, 5000))
def test_quantile_inverts_the_tail(tail: float, degrees_of_freedom: float) -> None:
    """The tail beyond the quantile is the tail asked for."""
    t = upper_quantile(tail, degrees_of_freedom)
    assert upper_tail(t, degrees_of_freedom) == pytest.approx(tail, rel=1e-9)


rounds = st.integers(0, 6).flatmap(
    lambda drafted: st.integers(0, drafted).flatmap(
        lambda accepted: st.tuples(
            st.just(drafted), st.just(accepted), st.integers(1, accepted + 1)
        )
    )
)


def counted(trace: list[tuple[int, int, int]]) -> SpecDecodeCounters:
    """Counters of a list of rounds."""
    counters = SpecDecodeCounters()
    for drafted, accepted, emitted in trace:
        counters = counters.add_round(
            num_draft_tokens=drafted, num_accepted_tokens=accepted, num_emitted_tokens=emitted
        )
    return counters


@examples
@given(st.lists(rounds, max_size=20), st.lists(rounds, max_size=20))
def test_counters_add_up(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    """Merging two traces counts what one long trace counts, and ratios stay in range."""
    merged = counted(first).merge(counted(second))
    assert merged == counted(first + second)
    rate, length, per_round = (
        merged.draft_acceptance_rate,
        merged.mean_acceptance_length,
        merged.tokens_per_round,
    )
    assert rate is None or 0 <= rate <= 1
    assert (rate is None) == (length is None) == (merged.num_drafts == 0)
    assert (per_round is None) == (not first + second)
    assert length is None or length == pytest.approx(1 + sum(merged.acceptance_rate_per_pos))

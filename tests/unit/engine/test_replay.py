"""Replay: exact for greedy, exact against enumeration, robust at the edges."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.profile import StartProfile
from engine.record import Trajectory, record
from engine.replay import Replay, replay
from engine.request import FinishReason
from tests.support.eagle3 import feature_layers
from tests.support.replaying import measured, profiles
from tests.support.rounds import enumerate_rounds, expected_rounds, start_profile
from tests.support.tiny_models import (
    DRAFTERS,
    random_prompt,
    request,
    tiny_engine,
    tiny_model,
)

MAX_LEN = 64
K_MAX = 8
EOS = (5,)
TARGET = tiny_model(7)
REQUESTS = [
    request(prompt, name=f"{i}", max_tokens=max_tokens)
    for i, (prompt, max_tokens) in enumerate(
        [
            ((7,), 1),
            ((5,) * 30, 30),
            ((4, 8, 1, 1, 9) * 6, 30),
            (random_prompt(2, 17), 2),
            (random_prompt(3, 60), 30),  # the slot ends before the limit
            *((random_prompt(seed, 9), 26) for seed in range(10, 18)),
        ]
    )
]


def engine_with(kind: str, slots: int = 5) -> Engine:
    """An engine whose answers end by end tokens, by limits and by the slot's end."""
    engine = tiny_engine(TARGET, slots=slots, max_len=MAX_LEN, eos_token_ids=EOS)
    engine.load(DRAFTERS[kind](engine))
    return engine


@cache
def trajectories() -> list[Trajectory]:
    """The recorded greedy answers."""
    return record(
        tiny_engine(TARGET, slots=3, max_len=MAX_LEN, eos_token_ids=EOS),
        REQUESTS,
        batch_size=3,
        feature_layers=feature_layers(TARGET),
    )


@cache
def replayed(kind: str) -> list[StartProfile]:
    """Profiles of all answers for one drafter."""
    engine = engine_with(kind)
    assert engine.drafter is not None
    return profiles(engine.drafter, trajectories(), max_drafts=K_MAX, max_len=MAX_LEN)


def test_the_answers_end_in_all_ways() -> None:
    """End tokens, limits and the slot's end all occur, and so does an answer of one token."""
    ends = {
        (t.finish_reason, t.num_decoded + 1 < t.request.params.max_tokens) for t in trajectories()
    }

    assert ends == {
        (FinishReason.STOP, True),
        (FinishReason.LENGTH, False),
        (FinishReason.LENGTH, True),
    }
    assert any(t.num_decoded == 0 for t in trajectories())
    assert (
        sum(t.finish_reason is FinishReason.STOP and t.num_decoded > 3 for t in trajectories()) > 2
    )


@pytest.mark.parametrize("num_speculative_tokens", range(1, K_MAX + 1))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_counts_equal_the_engines_own(kind: str, num_speculative_tokens: int) -> None:
    """Rounds, tokens, verified and accepted drafts per request: equal, not merely close."""
    k = num_speculative_tokens
    counts = measured(engine_with(kind), REQUESTS, batch_size=5, num_speculative_tokens=k)

    found = replay(replayed(kind), k)

    assert found.num_tokens.tolist() == [c.num_tokens for c in counts]
    assert found.num_rounds.tolist() == [c.num_rounds for c in counts]
    assert found.num_rounds_by_drafts.tolist() == [
        [c.by_drafts[drafts] for drafts in range(k + 1)] for c in counts
    ]
    assert found.num_accepted_per_pos.tolist() == [
        [c.per_pos[position] for position in range(k)] for c in counts
    ]
    assert found.tokens_per_round == sum(c.num_tokens for c in counts) / sum(
        c.num_rounds for c in counts
    )


@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_greedy_comparison_is_not_trivial(kind: str) -> None:
    """Drafts are accepted, and but for the target itself also rejected."""
    found = replay(replayed(kind), 4)
    accepted = float(found.num_accepted_per_pos.sum())
    drafted = sum(k * float(n) for k, n in enumerate(found.num_rounds_by_drafts.sum(dim=0)))

    assert 0 < accepted < drafted
    if kind == "target":
        # Only end tokens in the middle of a block keep drafts from being accepted.
        assert float(found.num_rounds.sum()) < float(found.num_tokens.sum()) / 2.5


def test_an_end_token_is_accepted_in_the_middle_of_a_block() -> None:
    """The case that a count of accepted drafts gets wrong does occur."""
    found = replay(replayed("target"), K_MAX)
    middle = [
        row
        for row, trajectory in enumerate(trajectories())
        if trajectory.finish_reason is FinishReason.STOP
        and 1 <= trajectory.num_decoded % (K_MAX + 1) < K_MAX
    ]

    assert len(middle) > 3
    for row in middle:
        accepted = float(found.num_accepted_per_pos[row].sum())
        drafted = sum(k * float(n) for k, n in enumerate(found.num_rounds_by_drafts[row]))
        assert accepted < drafted
        # The last round emits nothing beyond the end token it accepted.
        assert accepted + float(found.num_rounds[row]) - 1 == float(found.num_tokens[row])


# ---------------------------------------------------------------- against enumeration


@st.composite
def survivals(draw: st.DrawFn) -> tuple[list[list[Fraction]], list[int], int]:
    """Survival in (0, 1] and ragged numbers of drafts, none included; K_max of the profile."""
    k_max = draw(st.integers(1, 4))
    n = draw(st.integers(0, 6))
    survival, num_proposed = [], []
    for start in range(n):
        drafts = draw(st.integers(0, k_max))
        chances = draw(
            st.lists(
                st.sampled_from([Fraction(i, 8) for i in range(9)]),
                min_size=k_max,
                max_size=k_max,
            )
        )
        row, chance = [], Fraction(1)
        for position, accept in enumerate(chances):
            # Nothing lies beyond the end of the answer or of the proposal.
            inside = position < drafts and start + position < n
            chance = chance * accept if inside else Fraction(0)
            row.append(chance)
        survival.append(row)
        num_proposed.append(drafts)
    return survival, num_proposed, k_max


@given(st.lists(survivals(), min_size=1, max_size=3), st.data())
def test_counts_are_the_means_over_all_courses(
    cases: list[tuple[list[list[Fraction]], list[int], int]], data: st.DataObject
) -> None:
    """Every figure equals its mean over an enumeration of all courses of rounds."""
    k = data.draw(st.integers(1, min(k_max for _, _, k_max in cases)))

    found = replay([start_profile(*case) for case in cases], k)

    for row, (survival, num_proposed, _) in enumerate(cases):
        wanted = enumerate_rounds(survival, num_proposed, k)
        assert found.num_tokens[row] == len(num_proposed)
        assert float(found.num_rounds[row]) == pytest.approx(float(wanted.num_rounds), abs=1e-12)
        for got, means in (
            (found.num_rounds_by_drafts[row], wanted.num_rounds_by_drafts),
            (found.num_accepted_per_pos[row], wanted.num_accepted_per_pos),
            (found.visits[row, : len(num_proposed)], wanted.visits),
        ):
            assert got.tolist() == pytest.approx([float(mean) for mean in means], abs=1e-12)
        assert not found.visits[row, len(num_proposed) :].any()


@given(survivals(), st.data())
def test_rounds_follow_the_recursion(
    case: tuple[list[list[Fraction]], list[int], int], data: st.DataObject
) -> None:
    """Expected rounds equal R(1) of the recursion in the theory."""
    survival, num_proposed, k_max = case
    k = data.draw(st.integers(1, k_max))

    found = replay([start_profile(survival, num_proposed, k_max)], k)

    wanted = expected_rounds(survival, num_proposed, k)
    assert float(found.num_rounds[0]) == pytest.approx(float(wanted), abs=1e-12)


@given(survivals())
def test_counts_add_up(case: tuple[list[list[Fraction]], list[int], int]) -> None:
    """A round emits what it accepts and one token; only the end of the answer cuts."""
    survival, num_proposed, k_max = case

    found = replay([start_profile(survival, num_proposed, k_max)], k_max)

    rounds, tokens = float(found.num_rounds[0]), float(found.num_tokens[0])
    emitted = float(found.num_accepted_per_pos.sum()) + rounds
    assert tokens - 1e-9 <= emitted <= tokens + 1 + 1e-9  # the last round may be cut by one
    assert float(found.num_rounds_by_drafts.sum()) == pytest.approx(rounds, abs=1e-12)
    assert float(found.visits.sum()) == pytest.approx(rounds, abs=1e-12)


# ---------------------------------------------------------------- figures and edges


def counts(tokens: list[float], rounds: list[float]) -> Replay:
    """A replay with chosen totals per request."""
    size = len(tokens)
    return Replay(
        num_speculative_tokens=2,
        num_tokens=torch.tensor(tokens, dtype=torch.float64),
        num_rounds=torch.tensor(rounds, dtype=torch.float64),
        num_rounds_by_drafts=torch.zeros(size, 3, dtype=torch.float64),
        num_accepted_per_pos=torch.zeros(size, 2, dtype=torch.float64),
        visits=torch.zeros(size, 1, dtype=torch.float64),
    )


def test_the_jackknife_by_hand() -> None:
    """Three requests: the formula written out."""
    found = counts([10, 20, 30], [5, 8, 20])

    left = [50 / 28, 40 / 25, 30 / 13]
    mean = sum(left) / 3
    assert found.tokens_per_round == 60 / 33
    assert found.tokens_per_round_std_error == pytest.approx(
        (sum((x - mean) ** 2 for x in left) * 2 / 3) ** 0.5
    )


def test_the_jackknife_tells_the_spread_of_the_ratio() -> None:
    """Over 2,000 workloads of 30 requests, s.e. and true spread differ by less than 10 %."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, 60, (2000, 30), generator=generator).double()
    share = 0.3 + 0.6 * torch.rand(2000, 30, generator=generator).double()
    found = [counts(t.tolist(), (t * s).tolist()) for t, s in zip(tokens, share, strict=True)]

    true = float(torch.tensor([one.tokens_per_round for one in found]).std())
    errors = [one.tokens_per_round_std_error for one in found]
    told = sum(error for error in errors if error is not None) / len(errors)
    assert told == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize(
    ("tokens", "rounds"), [([4.0], [2.0]), ([4.0, 0.0], [2.0, 0.0]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_one_request_with_rounds_has_no_standard_error(
    tokens: list[float], rounds: list[float]
) -> None:
    """Requests of one token do not count, so that no figure becomes NaN."""
    assert counts(tokens, rounds).tokens_per_round_std_error is None


def test_requests_without_rounds_leave_the_standard_error_alone() -> None:
    """Answers of one token carry no information."""
    without, with_empty = counts([10, 20, 30], [5, 8, 20]), counts([10, 20, 0, 30], [5, 8, 0, 20])

    assert with_empty.tokens_per_round_std_error == without.tokens_per_round_std_error


def test_select_takes_the_rows_in_order() -> None:
    """A selection has the figures of its requests alone."""
    whole = replay(replayed("draft"), 3)

    part = whole.select([8, 2])

    alone = replay([replayed("draft")[8], replayed("draft")[2]], 3)
    assert part.num_speculative_tokens == 3
    for name in ("num_tokens", "num_rounds", "num_rounds_by_drafts", "num_accepted_per_pos"):
        assert torch.equal(getattr(part, name), getattr(alone, name))
    assert part.tokens_per_round == alone.tokens_per_round


def test_answers_of_one_token_replay_to_nothing() -> None:
    """No rounds, no tokens, no division."""
    engine = engine_with("draft")
    assert engine.drafter is not None
    single = [t for t in trajectories() if t.num_decoded == 0]

    found = replay(profiles(engine.drafter, single, max_drafts=3, max_len=MAX_LEN), 3)

    assert found.num_rounds.tolist() == found.num_tokens.tolist() == [0.0] * len(single)
    assert found.num_rounds_by_drafts.shape == (len(single), 4)


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_verify_tokens_count_the_newest_token(kind: str) -> None:
    """The mean over rounds of drafts and one."""
    found = measured(engine_with(kind), REQUESTS, batch_size=5, num_speculative_tokens=4)
    rounds = sum(c.num_rounds for c in found)
    drafts = sum(k * n for c in found for k, n in c.by_drafts.items())

    assert replay(replayed(kind), 4).mean_verify_tokens == pytest.approx(1 + drafts / rounds)

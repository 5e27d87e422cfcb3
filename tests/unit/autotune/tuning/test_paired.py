"""Paired blocks: what runs in a window, from which states, and what is counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import mean, stdev
from typing import cast

import pytest

from autotune.progress import Silent
from autotune.tuning.acceptance import AcceptanceProfile, profile_drafters
from autotune.tuning.paired import PairedBench, _Starts
from autotune.tuning.paired_block import Tally
from autotune.tuning.prior import Prior
from autotune.tuning.session import Session
from engine.drafters.base import Drafter, DrafterSnapshot, Proposal
from engine.engine import Engine, RowOutcome
from engine.errors import NumericError
from engine.kv_cache import KvSnapshot
from engine.request import Sequence
from policies.types import Block, SpeculativeConfig
from tests.support.scripted import ScriptedDrafter, StatelessDrafter
from tests.support.sessions import FakeClock, QuietWatch, memory_session
from tests.support.tiny_models import (
    answer,
    layer_skip,
    random_prompt,
    request,
    similar_draft,
    tiny_engine,
    tiny_model,
)

LENGTH = 41
REQUESTS = [
    request(random_prompt(seed, 5 + seed), name=f"{seed}", max_tokens=LENGTH, ignore_eos=True)
    for seed in range(6)
]
SAMPLED = [
    request(random_prompt(seed, 6), name=f"{seed}", max_tokens=20, temperature=1.0, seed=seed)
    for seed in range(6)
]
K5 = SpeculativeConfig(drafter="bursts", num_speculative_tokens=5)
K3 = SpeculativeConfig(drafter="draft", num_speculative_tokens=3)
IDLE = SpeculativeConfig(drafter="draft")


@pytest.fixture(autouse=True)
def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes a second, and nobody else is there."""
    monkeypatch.setattr("autotune.tuning.paired.perf_counter", FakeClock())
    monkeypatch.setattr("autotune.tuning.paired.LoadWatch", QuietWatch)


def bursts(engine: Engine) -> Drafter:
    """Right about one long stretch of every answer, wrong about all the rest of it."""
    plain = tiny_engine(engine.target, slots=1)
    answers = {asked.request_id: answer(plain, asked.prompt_tokens, LENGTH) for asked in REQUESTS}

    def num_right(sequence: Sequence) -> int:
        first = 3 * int(sequence.request.request_id)
        position = sequence.num_output_tokens
        return first + 20 - position if first <= position else 0

    return ScriptedDrafter(answers, num_right, engine.target.config.vocab_size)


def bench_for(session: Session) -> tuple[PairedBench, AcceptanceProfile]:
    """A bench with the session's replayed acceptance."""
    acceptance = profile_drafters(session, Silent())
    return PairedBench(session, acceptance), acceptance


def sampled_bench(**settings: object) -> tuple[PairedBench, Session]:
    """A bench over sampled requests and a draft model."""
    session = memory_session(
        SAMPLED, {"draft": similar_draft, "skip": layer_skip}, **({"window_s": 4.0} | settings)
    )
    return bench_for(session)[0], session


def watch_rounds(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, seen: Callable[[list[RowOutcome]], None]
) -> None:
    """Show the outcomes of every round."""
    run = engine.round

    def spied(*args: int | float | None, **kwargs: bool) -> list[RowOutcome]:
        outcomes = run(*args, **kwargs)  # type: ignore[arg-type]
        seen(outcomes)
        return outcomes

    monkeypatch.setattr(engine, "round", spied)


def tokens_per_round(bench: PairedBench, num_blocks: int, batch_size: int) -> tuple[float, float]:
    """Mean over blocks of the candidate's tokens per round and row, and its standard error."""
    found = []
    for index in range(num_blocks):
        tally = bench.measure(K5, batch_size, "explore", index).candidate
        found.append(tally.num_tokens / (tally.seconds * batch_size))
    return mean(found), stdev(found) / num_blocks**0.5


class EvenBench(PairedBench):
    """Starts every window evenly over the answers' tokens: the mistake to avoid."""

    def _starts_of(self, arm: SpeculativeConfig) -> _Starts:
        trajectories = self._session.trajectories
        return _Starts(trajectories, [[1.0] * t.num_decoded for t in trajectories])


def test_windows_show_the_replayed_tokens_per_round() -> None:
    """Short windows of a drafter that accepts in bursts are not biased: 4 standard errors.

    40 blocks of 64 rounds; the standard error is below 4 %, which is asserted.
    """
    session = memory_session(REQUESTS, {"bursts": bursts}, window_s=4.0)
    bench, acceptance = bench_for(session)

    found, error = tokens_per_round(bench, 40, batch_size=8)

    wanted = acceptance.replay(K5).tokens_per_round
    assert error < 0.04 * wanted
    assert abs(found - wanted) < 4 * error


def test_even_starts_would_flatter_bursts() -> None:
    """Control: most tokens lie in a burst but few rounds start there, and the test sees it."""
    session = memory_session(REQUESTS, {"bursts": bursts}, window_s=4.0)
    acceptance = profile_drafters(session, Silent())

    found, error = tokens_per_round(EvenBench(session, acceptance), 20, batch_size=4)

    assert found - acceptance.replay(K5).tokens_per_round > 8 * error


def test_the_batch_size_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """B15: requests that end are replaced at once, so every round has all its rows."""
    session = memory_session(REQUESTS, {"bursts": bursts}, window_s=60.0)
    bench, _ = bench_for(session)
    rows: list[int] = []
    watch_rounds(session.engine, monkeypatch, lambda outcomes: rows.append(len(outcomes)))

    block = bench.measure(K5, 3, "explore", 0)

    assert set(rows) == {3}
    assert len(rows) > 100  # long enough that every row ended several times
    assert block.baseline.num_tokens == 3 * block.baseline.seconds


def test_a_new_request_begins_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first rows of a window start in the middle; replacements have one token."""
    monkeypatch.setattr("autotune.tuning.paired._ROWS_PER_WINDOW", 8)  # one set of rows
    session = memory_session(REQUESTS, {"bursts": bursts}, window_s=60.0)
    bench, _ = bench_for(session)
    bench.measure(K5, 8, "explore", 0)
    windows: list[list[int]] = []
    load, resume = session.engine.load, session.engine.resume

    def spied_load(drafter: Drafter | None) -> None:
        windows.append([])
        load(drafter)

    def spied_resume(
        slot: int, sequence: Sequence, snapshot: KvSnapshot, drafted: DrafterSnapshot | None
    ) -> None:
        windows[-1].append(sequence.num_output_tokens)
        resume(slot, sequence, snapshot, drafted)

    monkeypatch.setattr(session.engine, "load", spied_load)
    monkeypatch.setattr(session.engine, "resume", spied_resume)

    bench.measure(K5, 8, "explore", 1)

    assert len(windows) == 4
    for positions in windows:
        assert max(positions[:8]) > 10
        assert positions[8:]
        assert set(positions[8:]) == {1}


def test_the_windows_form_abba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off, arm, arm, off or the reverse, by chance; the arm is loaded for its windows only."""
    bench, session = sampled_bench(window_s=1.0)
    loads: list[str] = []
    load = session.engine.load
    monkeypatch.setattr(
        session.engine,
        "load",
        lambda drafter: (loads.append(drafter.name if drafter else "off"), load(drafter))[1],
    )

    for index in range(12):
        bench.measure(K3, 2, "explore", index)

    assert loads[:2] == ["off", "draft"]  # warm-up, once
    orders = Counter(tuple(loads[i : i + 4]) for i in range(2, len(loads), 4))
    assert set(orders) == {("off", "draft", "draft", "off"), ("draft", "off", "off", "draft")}
    assert orders.total() == 12


def test_idle_arms_take_many_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times ABBA within a block: neighbours in time share the clock, and drift cancels.

    A block takes as long as any other, and either order comes up.
    """
    monkeypatch.setattr("autotune.tuning.paired._ROWS_PER_WINDOW", 2)  # one set of rows
    bench, session = sampled_bench(window_s=60.0)
    bench.measure(IDLE, 2, "validate", 99)  # warm
    loads: list[str] = []
    load = session.engine.load
    monkeypatch.setattr(
        session.engine,
        "load",
        lambda drafter: (loads.append(drafter.name if drafter else "off"), load(drafter))[1],
    )

    idle = [bench.measure(IDLE, 2, "validate", index) for index in range(12)]

    orders = Counter(tuple(loads[i : i + 20]) for i in range(0, len(loads), 20))
    assert set(orders) == {
        ("off", "draft", "draft", "off") * 5,
        ("draft", "off", "off", "draft") * 5,
    }
    assert orders.total() == 12
    # A round of the fake clock takes a second: 2 x 5 x 12 rounds of each arm.
    assert {(one.baseline.seconds, one.candidate.seconds) for one in idle} == {(120.0, 120.0)}
    drafting = bench.measure(K3, 2, "validate", 0)
    assert drafting.baseline.seconds == 120.0


def test_every_turn_has_rows_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The starting states of a block's turns differ, and both arms get the same ones."""
    bench, session = sampled_bench(window_s=20.0)
    bench.measure(IDLE, 2, "validate", 99)
    turns: list[tuple[str, list[tuple[str, int]]]] = []
    load, resume = session.engine.load, session.engine.resume

    def spied_load(drafter: Drafter | None) -> None:
        turns.append((drafter.name if drafter else "off", []))
        load(drafter)

    def spied_resume(
        slot: int, sequence: Sequence, snapshot: KvSnapshot, drafted: DrafterSnapshot | None
    ) -> None:
        turns[-1][1].append((sequence.request.request_id, sequence.num_output_tokens))
        resume(slot, sequence, snapshot, drafted)

    monkeypatch.setattr(session.engine, "load", spied_load)
    monkeypatch.setattr(session.engine, "resume", spied_resume)

    bench.measure(IDLE, 2, "validate", 0)

    off = [rows[:2] for name, rows in turns if name == "off"]
    idle = [rows[:2] for name, rows in turns if name == "draft"]
    assert off == idle
    assert len(off) == 10
    assert len({tuple(rows) for rows in off}) > 5


def test_a_block_is_a_function_of_seed_stage_and_index() -> None:
    """Equal numbers give equal draws, whatever was measured before."""
    first, second = sampled_bench()[0], sampled_bench()[0]
    second.measure(K3, 2, "explore", 7)

    assert first.measure(K3, 2, "explore", 0) == second.measure(K3, 2, "explore", 0)


def test_another_seed_stage_or_index_is_another_block() -> None:
    """Validation never sees the blocks of the search again."""
    bench, other = sampled_bench()[0], sampled_bench(seed=1)[0]

    blocks = [
        bench.measure(K3, 2, "explore", 0),
        bench.measure(K3, 2, "explore", 1),
        bench.measure(K3, 2, "validate", 0),
        other.measure(K3, 2, "explore", 0),
    ]

    assert all(a.candidate != b.candidate for a, b in pairwise(blocks))


def test_off_drafts_nothing() -> None:
    """The baseline emits one token per row and round."""
    bench, _ = sampled_bench()

    baseline = bench.measure(K3, 2, "explore", 0).baseline

    tokens = 2 * int(baseline.seconds)
    assert baseline == Tally(num_tokens=tokens, num_rounds=tokens, seconds=baseline.seconds)


class StubPrior:
    """Keeps what it is asked, and answers with a number."""

    def __init__(self) -> None:
        self.asked: list[tuple[SpeculativeConfig, int, Tally]] = []

    def expected_tokens(self, config: SpeculativeConfig, batch_size: int, tally: Tally) -> float:
        """Always the same."""
        self.asked.append((config, batch_size, tally))
        return 12.5


def test_what_a_block_should_have_emitted_is_told_by_the_prior() -> None:
    """Asked about the candidate's own work; without a prior nothing is expected."""
    session = memory_session(SAMPLED, {"draft": similar_draft}, window_s=4.0)
    acceptance = profile_drafters(session, Silent())
    prior = StubPrior()

    block = PairedBench(session, acceptance, cast(Prior, prior)).measure(K3, 2, "explore", 0)

    assert block.expected_tokens == block.block().expected_tokens == 12.5
    assert prior.asked == [(K3, 2, block.candidate)]
    assert block.candidate.num_rounds > 0
    plain = PairedBench(session, acceptance).measure(K3, 2, "explore", 0)
    assert plain.expected_tokens is None


def test_a_loaded_drafter_at_k_0_drafts_nothing() -> None:
    """The idle arm runs with its drafter in memory."""
    bench, session = sampled_bench()

    idle = bench.measure(IDLE, 2, "validate", 0).candidate

    assert idle.num_draft_tokens == 0
    assert idle.num_tokens == 2 * idle.seconds
    assert session.engine.sequences == {}


def test_counts_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, drafts and accepted drafts of the arm are what its rounds reported."""
    bench, session = sampled_bench()
    bench.measure(K3, 2, "explore", 0)  # the warm-up is not counted
    outcomes: list[RowOutcome] = []
    watch_rounds(session.engine, monkeypatch, outcomes.extend)

    block = bench.measure(K3, 2, "explore", 1)

    drafted = [outcome for outcome in outcomes if outcome.num_drafted]
    assert block.candidate.num_drafts == len(drafted)
    assert block.candidate.num_draft_tokens == sum(o.num_drafted for o in drafted)
    assert block.candidate.num_accepted_tokens == sum(o.num_accepted for o in drafted)
    assert block.candidate.num_tokens + block.baseline.num_tokens == sum(
        outcome.num_emitted for outcome in outcomes
    )
    assert block.block() == Block(
        baseline_tokens=block.baseline.num_tokens,
        baseline_s=block.baseline.seconds,
        candidate_tokens=block.candidate.num_tokens,
        candidate_s=block.candidate.seconds,
    )


@pytest.mark.parametrize(("share", "disturbed"), [(0.05, False), (0.3, True)])
def test_others_on_the_processors_mark_a_block(
    share: float, disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a tenth of the machine taken by others, a block is disturbed."""
    monkeypatch.setattr(QuietWatch, "share", share)
    bench, _ = sampled_bench()

    assert bench.measure(K3, 2, "explore", 0).disturbed is disturbed


class FailsLater(StatelessDrafter):
    """Works for a while, then computes NaN."""

    def __init__(self) -> None:
        self._left = 5

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Nothing but an error after some rounds."""
        self._left -= 1
        if self._left < 0:
            raise NumericError("logits hold NaN")
        return Proposal([[0] * limit for limit in limits], None)


def test_an_arm_that_fails_does_not_stand_in_the_way() -> None:
    """Its rows are released, so that the next arm finds the engine idle."""
    session = memory_session(
        SAMPLED, {"draft": similar_draft, "later": lambda engine: FailsLater()}, window_s=8.0
    )
    acceptance = profile_drafters(memory_session(SAMPLED, {"draft": similar_draft}), Silent())
    acceptance.profiles = dict(acceptance.profiles) | {
        ("later", None): acceptance.profiles["draft", None]
    }
    bench = PairedBench(session, acceptance)

    with pytest.raises(NumericError):
        bench.measure(SpeculativeConfig(drafter="later", num_speculative_tokens=2), 2, "explore", 0)

    assert session.engine.sequences == {}
    assert bench.measure(K3, 2, "explore", 0).candidate.num_tokens > 0


def test_answers_are_continued_with_fresh_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window does not repeat the recorded answer token by token."""
    bench, session = sampled_bench(window_s=60.0)
    recorded = {t.request.request_id: t for t in session.trajectories}
    repeats, rows = 0, 0

    def compare(outcomes: list[RowOutcome]) -> None:
        nonlocal repeats, rows
        for outcome in outcomes:
            sequence = session.engine.sequences[outcome.slot]
            output = sequence.output_tokens
            rows += 1
            repeats += list(recorded[sequence.request.request_id].output_tokens[: len(output)]) == (
                output
            )

    watch_rounds(session.engine, monkeypatch, compare)
    bench.measure(K3, 2, "explore", 0)

    assert rows > 100
    assert 0 < repeats < rows / 2


def test_starts_are_spread_evenly_by_weight() -> None:
    """A systematic sample: every answer gets its share of the starts, rounded up or down."""
    session = memory_session(SAMPLED, {})
    visits = [[1.0] * t.num_decoded for t in session.trajectories]
    starts = _Starts(session.trajectories, visits)
    total = sum(map(sum, visits))

    drawn = starts.draw(40, random.Random(3))

    by_answer = Counter(t.request.request_id for t, _ in drawn)
    for trajectory, weights in zip(session.trajectories, visits, strict=True):
        share = 40 * sum(weights) / total
        assert abs(by_answer[trajectory.request.request_id] - share) < 1


def test_starts_follow_the_weights() -> None:
    """Positions without weight are never drawn; a position counts output tokens."""
    session = memory_session(SAMPLED[:2], {})
    visits = [[0.0] * t.num_decoded for t in session.trajectories]
    visits[1][2] = 0.25
    visits[1][4] = 0.75
    starts = _Starts(session.trajectories, visits)

    drawn = Counter(position for _, position in starts.draw(400, random.Random(3)))

    assert drawn == {3: 100, 5: 300}


def test_answers_of_one_token_are_never_started_from() -> None:
    """Requests that end with their first token take no part."""
    one = request(random_prompt(9, 4), name="one", max_tokens=1)
    session = memory_session([one, *SAMPLED], {"draft": similar_draft}, window_s=20.0)
    bench, acceptance = bench_for(session)

    assert bench.measure(K3, 2, "explore", 0).candidate.num_tokens > 0
    assert acceptance.replay(K3).visits[0].sum() == 0


def test_the_target_model_is_shared() -> None:
    """Guard of these tests: the tiny target does not answer everything alike."""
    engine = tiny_engine(tiny_model(7), slots=1)

    assert len({tuple(answer(engine, r.prompt_tokens, 8)) for r in REQUESTS}) > 3

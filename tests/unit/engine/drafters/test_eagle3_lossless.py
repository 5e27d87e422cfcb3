"""An EAGLE-3 head that is often right: its output is plain, and its rounds are those of replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.engine import Engine
from engine.errors import NumericError
from engine.record import Trajectory, record
from engine.replay import Replay, replay
from engine.request import FinishReason, Request, Sequence
from tests.support.eagle3 import eagle3, eagle3_with, feature_layers, fitted_head, random_head
from tests.support.eagle3_mutants import EAGLE3_MUTANTS, StaleKeys, StatesOneLate
from tests.support.replaying import Counts, measured, profiles, tokens_per_round
from tests.support.tiny_models import answer, random_prompt, request, tiny_engine, tiny_model

TARGET = tiny_model(7, head_scale=1.0, layer_scale=0.1)
MAX_LEN = 48
K_MAX = 4
NUM_REQUESTS = 24
MIXED_K = (3, 0, 0, 1, 4, 0, 2, 5)


def requests(temperature: float = 0.0) -> list[Request]:
    """Prompts and answers of different lengths; every fourth answer fills its slot."""
    return [
        request(
            random_prompt(i, 1 + i % 9),
            name=str(i),
            temperature=temperature,
            max_tokens=100 if i % 4 == 3 else 8 + i,
            seed=i,
        )
        for i in range(NUM_REQUESTS)
    ]


def engine_with(
    kind: type[Eagle3Drafter] = Eagle3Drafter, *, slots: int = NUM_REQUESTS
) -> tuple[Engine, Eagle3Drafter]:
    """An engine and its drafter with the fitted head."""
    engine = tiny_engine(TARGET, slots=slots, max_len=MAX_LEN)
    drafter = eagle3_with(engine, fitted_head(TARGET), kind)
    engine.load(drafter)
    return engine, drafter


@cache
def plain() -> list[list[int]]:
    """The greedy answers without a drafter, one at a time."""
    sequences, _ = tiny_engine(TARGET, slots=1, max_len=MAX_LEN).generate(requests(), batch_size=1)
    return [sequence.output_tokens for sequence in sequences]


@cache
def recorded(temperature: float) -> list[Trajectory]:
    """The answers with the states that the head reads."""
    return record(
        tiny_engine(TARGET, slots=NUM_REQUESTS, max_len=MAX_LEN),
        requests(temperature),
        batch_size=NUM_REQUESTS,
        feature_layers=feature_layers(TARGET),
    )


@cache
def replayed(k: int) -> Replay:
    """Counts of the greedy answers by replay."""
    _, drafter = engine_with()
    return replay(profiles(drafter, recorded(0.0), max_drafts=k, max_len=MAX_LEN), k)


def counted(kind: type[Eagle3Drafter], k: int) -> list[Counts]:
    """Counts of the greedy answers by the engine."""
    engine, _ = engine_with(kind)
    return measured(engine, requests(), batch_size=NUM_REQUESTS, num_speculative_tokens=k)


# ---------------------------------------------------------------- output


def test_the_head_is_right_often_and_wrong_often() -> None:
    """So that the tests here see accepted drafts at every position, and rejected ones."""
    shares = replayed(K_MAX).num_accepted_per_pos.sum(dim=0) / replayed(K_MAX).num_rounds.sum()

    assert 0.4 < float(shares[0]) < 0.9
    assert float(shares[-1]) > 0.1


@pytest.mark.parametrize("draft_temperature", [None, 0.0, 1.3])
def test_any_k_in_any_order_keeps_the_greedy_answers(draft_temperature: float | None) -> None:
    """Idle rounds, rows that end at their limits or with the slot, and any draft temperature."""
    engine, _ = engine_with()
    for slot, asked in enumerate(requests()):
        engine.admit(slot, asked)
    drafted: set[tuple[int, ...]] = set()

    for k in MIXED_K * 12:
        outcomes = engine.round(k, draft_temperature)
        drafted.add(tuple(sorted({outcome.num_drafted for outcome in outcomes})))

    assert [engine.release(slot).output_tokens for slot in range(NUM_REQUESTS)] == plain()
    assert any(len(limits) > 2 and limits[0] == 0 for limits in drafted)  # some rows sat out


@pytest.mark.parametrize("k", [2, 8])
def test_an_end_token_inside_a_block_ends_the_answer(k: int) -> None:
    """Whether it was drafted or chosen after a rejection; nothing after it is emitted."""
    end = plain()[3][4]
    engine = tiny_engine(TARGET, slots=NUM_REQUESTS, max_len=MAX_LEN, eos_token_ids=(end,))
    engine.load(eagle3(engine))

    sequences, counters = engine.generate(
        requests(), batch_size=NUM_REQUESTS, num_speculative_tokens=k
    )

    wanted = [t[: t.index(end) + 1] if end in t else t for t in plain()]
    assert [sequence.output_tokens for sequence in sequences] == wanted
    assert {s.finish_reason for s in sequences} == {FinishReason.STOP, FinishReason.LENGTH}
    # A round whose last token is an accepted draft emits no token after it.
    assert counters.num_emitted_tokens < counters.num_accepted_tokens + counters.num_rounds


def test_greedy_and_sampled_rows_do_not_disturb_each_other() -> None:
    """Mixed in one batch with a draft temperature, each answers as it does alone."""
    asked = [r for pair in zip(requests(0.0), requests(1.0), strict=True) for r in pair][:8]
    engine, _ = engine_with()

    together, _ = engine.generate(
        asked, batch_size=8, num_speculative_tokens=3, draft_temperature=0.7
    )

    for one, sequence in zip(asked, together, strict=True):
        (alone,), _ = engine.generate(
            [one], batch_size=1, num_speculative_tokens=3, draft_temperature=0.7
        )
        assert alone.output_tokens == sequence.output_tokens


# ---------------------------------------------------------------- numbers that are none


def nan_head(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Eagle3Drafter:
    """A head whose logits are NaN."""
    head = random_head(engine.target)
    head.norm.weight[3] = math.nan
    return eagle3_with(engine, head)


def nan_states(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Eagle3Drafter:
    """A head that is handed NaN by every verify pass."""
    drafter = eagle3(engine)
    ingest = drafter.ingest

    def broken(slot: int, sequence: Sequence, features: Tensor) -> None:
        ingest(slot, sequence, features * math.nan)

    monkeypatch.setattr(drafter, "ingest", broken)
    return drafter


@pytest.mark.parametrize("draft_temperature", [None, 0.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", [nan_head, nan_states])
def test_nan_is_an_error_and_harms_nobody(
    make: Callable[[Engine, pytest.MonkeyPatch], Eagle3Drafter],
    temperature: float,
    draft_temperature: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is raised before anything is emitted, plain decoding goes on, and the slot is clean."""
    engine = tiny_engine(TARGET, slots=2, max_len=MAX_LEN)
    engine.load(make(engine, monkeypatch))
    for slot in range(2):
        engine.admit(slot, requests(temperature)[4 + slot])
    engine.round(0)
    before = [list(sequence.tokens) for sequence in engine.sequences.values()]

    with pytest.raises(NumericError, match="NaN"):
        engine.round(3, draft_temperature)

    assert [sequence.tokens for sequence in engine.sequences.values()] == before
    while engine.round(0):
        pass
    found = [engine.release(slot).output_tokens for slot in range(2)]
    untouched = tiny_engine(TARGET, slots=2, max_len=MAX_LEN)
    sequences, _ = untouched.generate(requests(temperature)[4:6], batch_size=2)
    assert found == [sequence.output_tokens for sequence in sequences]


def test_nan_in_a_slot_does_not_reach_its_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broken request left in keys and states is never read again."""
    engine = tiny_engine(TARGET, slots=1, max_len=MAX_LEN)
    with monkeypatch.context() as broken:
        drafter = nan_states(engine, broken)
        engine.load(drafter)
        engine.admit(0, requests()[23])
        engine.round(0)
        with pytest.raises(NumericError):
            engine.round(3)
        engine.release(0)

    (sequence,), counters = engine.generate(requests()[4:5], batch_size=1, num_speculative_tokens=3)

    assert sequence.output_tokens == plain()[4]
    assert counters.num_accepted_tokens > 0


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize("k", range(1, K_MAX + 1))
def test_greedy_rounds_are_those_of_replay(k: int) -> None:
    """Rounds, verified and accepted drafts of every request: equal, not merely close."""
    counts = counted(Eagle3Drafter, k)

    found = replayed(k)

    assert found.num_rounds.tolist() == [c.num_rounds for c in counts]
    assert found.num_rounds_by_drafts.tolist() == [
        [c.by_drafts[drafts] for drafts in range(k + 1)] for c in counts
    ]
    assert found.num_accepted_per_pos.tolist() == [
        [c.per_pos[position] for position in range(k)] for c in counts
    ]


@pytest.mark.parametrize("kind", EAGLE3_MUTANTS)
def test_a_drafter_with_a_mistake_accepts_less_than_replay_says(kind: type[Eagle3Drafter]) -> None:
    """Stale keys, states of the wrong token, draft ids for target ids: fewer tokens per round.

    The comparison is exact, so no sampling error excuses it; the answers stay plain. K = 8, since
    longer chains leave more stale keys behind.
    """
    engine, _ = engine_with(kind)
    sequences, _ = engine.generate(requests(), batch_size=NUM_REQUESTS, num_speculative_tokens=8)
    assert [sequence.output_tokens for sequence in sequences] == plain()

    assert tokens_per_round(counted(kind, 8))[0] < replayed(8).tokens_per_round


def worst_key(kind: type[Eagle3Drafter]) -> float:
    """Largest distance of a kept key from what the target's states alone give, after ten rounds."""
    engine, drafter = engine_with(kind)
    for slot, asked in enumerate(requests()):
        engine.admit(slot, asked)
    for k in (*MIXED_K, 3, 3):
        engine.round(k)
    _, fresh = engine_with()
    distances = []
    for slot, trajectory in enumerate(recorded(0.0)):
        found = drafter.cache.snapshot(slot)
        wanted = fresh.snapshot_of(trajectory).kv.keys[:, :, : found.num_tokens]
        distances.append(float((found.keys - wanted).abs().max()))
    return max(distances)


def test_kept_keys_are_made_of_the_targets_states() -> None:
    """What drafting approximated is replaced once it is accepted."""
    assert worst_key(Eagle3Drafter) < 1e-3


@pytest.mark.parametrize("kind", [StaleKeys, StatesOneLate])
def test_keys_made_of_other_states_are_noticed(kind: type[Eagle3Drafter]) -> None:
    """By a hundred times the tolerance of the test above."""
    assert worst_key(kind) > 0.1


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("draft_temperature", [None, 0.6])
def test_a_recorded_answer_is_taken_up_anywhere(draft_temperature: float | None) -> None:
    """At every position: the proposal and its distributions of a run without an interruption."""
    (trajectory,) = [t for t in recorded(1.0) if t.request.request_id == "19"]
    prompt, output = trajectory.request.prompt_tokens, trajectory.output_tokens
    engine, drafter = engine_with(slots=2)
    drafted = drafter.snapshot_of(trajectory)
    engine.load(drafter)
    states = trajectory.features_of(drafter.feature_layers)
    whole = trajectory.resume_at(1)
    drafter.admit(0, whole, states[: len(prompt)])

    for position in range(1, trajectory.num_decoded):
        resumed = trajectory.resume_at(position)
        assert resumed.tokens == whole.tokens
        drafter.restore(1, resumed, drafted)
        one = drafter.propose([0], [whole], [3], draft_temperature)
        other = drafter.propose([1], [resumed], [3], draft_temperature)

        assert one.tokens == other.tokens
        assert one.probs is not None
        assert other.probs is not None
        torch.testing.assert_close(one.probs, other.probs, rtol=0, atol=1e-5)
        whole.tokens.append(output[position])
        drafter.ingest(0, whole, states[len(whole.tokens) - 2 : len(whole.tokens) - 1])


def test_the_answer_of_one_request_is_the_oracle() -> None:
    """The plain answers that everything here is compared with vary and are not one token."""
    assert answer(tiny_engine(TARGET, slots=1), requests()[4].prompt_tokens, 12) == plain()[4]
    assert len({tuple(tokens) for tokens in plain()}) == NUM_REQUESTS
    assert sum(len(set(tokens)) > 3 for tokens in plain()) > NUM_REQUESTS / 2

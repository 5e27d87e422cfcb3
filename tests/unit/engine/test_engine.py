"""Admission, ends, limits, counters and errors of the engine."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch

from engine.engine import Engine, RowOutcome
from engine.errors import EngineError, NumericError, RequestError
from engine.model import Transformer
from engine.request import FinishReason
from policies.counters import SpecDecodeCounters
from tests.support.reference import plain_logits
from tests.support.scripted import ScriptedDrafter
from tests.support.tiny_models import (
    DRAFTERS,
    answer,
    model_drafter,
    random_prompt,
    request,
    target_itself,
    tiny_config,
    tiny_engine,
    tiny_model,
    tiny_weights,
)

VOCAB = 12
TARGET = tiny_model(3, vocab_size=VOCAB)
PROMPT = (1, 2, 3, 1, 2)


def rounds_of(
    engine: Engine, num_speculative_tokens: int, *, draft_temperature: float | None = None
) -> list[RowOutcome]:
    """Outcomes of slot 0, round by round, until its request ends."""
    outcomes = []
    while engine.sequences[0].finish_reason is None:
        outcomes += engine.round(num_speculative_tokens, draft_temperature)
    return outcomes


def scripted(engine: Engine, script: list[int]) -> ScriptedDrafter:
    """A drafter that is right about `script[r]` tokens in round r, of every answer to PROMPT."""
    truth = answer(tiny_engine(TARGET, slots=1), PROMPT, 60)
    return ScriptedDrafter({"request": truth}, lambda seq: script[seq.round_index], VOCAB)


def test_counters_follow_a_hand_trace() -> None:
    """Three rounds with K = 4 that accept 4, 0 and 2 tokens count as worked out by hand."""
    engine = tiny_engine(TARGET)
    engine.load(scripted(engine, [4, 0, 2]))

    engine.admit(0, request(PROMPT, max_tokens=30))
    outcomes = [engine.round(4)[0] for _ in range(3)]
    counters = SpecDecodeCounters()
    for outcome in outcomes:
        counters = counters.add_round(
            num_draft_tokens=outcome.num_drafted,
            num_accepted_tokens=outcome.num_accepted,
            num_emitted_tokens=outcome.num_emitted,
        )

    assert [(o.num_drafted, o.num_accepted, o.num_emitted) for o in outcomes] == [
        (4, 4, 5),
        (4, 0, 1),
        (4, 2, 3),
    ]
    assert counters.draft_acceptance_rate == pytest.approx(6 / 12)
    assert counters.mean_acceptance_length == pytest.approx(3.0)
    assert counters.tokens_per_round == pytest.approx(3.0)
    assert counters.acceptance_rate_per_pos == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))


def test_generate_counts_the_same_trace() -> None:
    """The counters that `generate` returns are those of its rounds, ends included."""
    engine = tiny_engine(TARGET)
    engine.load(scripted(engine, [4, 0, 2, 3]))

    # 1 from prefill, 5 + 1 + 3 as above, then one round drafts 2 of the 3 that are left.
    sequences, counters = engine.generate(
        [request(PROMPT, max_tokens=13)], batch_size=1, num_speculative_tokens=4
    )

    assert len(sequences[0].output_tokens) == 13
    assert counters == SpecDecodeCounters(
        num_drafts=4,
        num_rounds=4,
        num_draft_tokens=14,
        num_accepted_tokens=8,
        num_emitted_tokens=12,
        num_accepted_tokens_per_pos=(3, 3, 1, 1),
    )


@pytest.mark.parametrize("kind", DRAFTERS)
def test_counters_agree_with_the_output(kind: str) -> None:
    """Emitted = output less the prefill token; a round emits what it accepts and one more."""
    engine = tiny_engine(TARGET)
    engine.load(DRAFTERS[kind](engine))
    seen: list[RowOutcome] = []
    requests = [
        request(random_prompt(i, 6), temperature=0.5 * (i % 3), seed=i, max_tokens=21)
        for i in range(7)
    ]

    sequences, counters = engine.generate(
        requests, batch_size=4, num_speculative_tokens=3, on_round=seen.extend
    )

    assert counters.num_emitted_tokens == sum(len(s.output_tokens) - 1 for s in sequences)
    assert counters.num_rounds == len(seen)
    assert counters.num_emitted_tokens == counters.num_accepted_tokens + counters.num_rounds
    for outcome in seen:
        assert 0 <= outcome.num_accepted <= outcome.num_drafted <= 3
        assert outcome.num_emitted == outcome.num_accepted + 1


def first_new_at(position: int) -> tuple[tuple[int, ...], list[int]]:
    """A prompt whose plain output holds a token at `position` that did not occur before it."""
    for seed in range(100):
        prompt = random_prompt(seed, 5)
        output = answer(tiny_engine(TARGET, slots=1), prompt, 12)
        if output[position] not in output[:position]:
            return prompt, output
    raise AssertionError("no prompt found")


@pytest.mark.parametrize("kind", DRAFTERS)
def test_an_end_token_inside_a_block_ends_the_output(kind: str) -> None:
    """The token that plain decoding emits at step 4 is declared the end; K = 8."""
    prompt, plain = first_new_at(3)
    engine = tiny_engine(TARGET, eos_token_ids=(plain[3],))
    engine.load(DRAFTERS[kind](engine))

    sequences, counters = engine.generate(
        [request(prompt, max_tokens=30)], batch_size=1, num_speculative_tokens=8
    )

    assert sequences[0].output_tokens == plain[:4]
    assert sequences[0].finish_reason is FinishReason.STOP
    assert counters.num_emitted_tokens == 3
    assert counters.num_accepted_tokens <= 3


def test_accepted_tokens_after_an_end_do_not_count() -> None:
    """All eight drafts would be accepted; the three that became output are counted."""
    prompt, plain = first_new_at(3)
    engine = tiny_engine(TARGET, eos_token_ids=(plain[3],))
    engine.load(target_itself(engine))

    _, counters = engine.generate(
        [request(prompt, max_tokens=30)], batch_size=1, num_speculative_tokens=8
    )

    assert counters == SpecDecodeCounters(
        num_drafts=1,
        num_rounds=1,
        num_draft_tokens=8,
        num_accepted_tokens=3,
        num_emitted_tokens=3,
        num_accepted_tokens_per_pos=(1, 1, 1, 0, 0, 0, 0, 0),
    )


def test_an_end_token_from_prefill_ends_the_output() -> None:
    """A request whose first token ends it never enters a round."""
    plain = answer(tiny_engine(TARGET, slots=1), PROMPT, 1)
    engine = tiny_engine(TARGET, eos_token_ids=(plain[0],))
    engine.load(target_itself(engine))

    sequences, counters = engine.generate(
        [request(PROMPT), request(PROMPT)], batch_size=2, num_speculative_tokens=4
    )

    assert [s.output_tokens for s in sequences] == [plain, plain]
    assert counters == SpecDecodeCounters()


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 8])
@pytest.mark.parametrize("kind", ["ngram", "target", "eagle3"])
def test_max_tokens_is_exact_at_every_offset(kind: str, num_speculative_tokens: int) -> None:
    """Limits from 1 to 14 in one batch: each output is that prefix of the plain one."""
    plain = answer(tiny_engine(TARGET, slots=1), PROMPT, 14)
    engine = tiny_engine(TARGET, slots=14)
    engine.load(DRAFTERS[kind](engine))

    sequences, _ = engine.generate(
        [request(PROMPT, max_tokens=limit) for limit in range(1, 15)],
        batch_size=14,
        num_speculative_tokens=num_speculative_tokens,
    )

    assert [s.output_tokens for s in sequences] == [plain[:limit] for limit in range(1, 15)]
    assert {s.finish_reason for s in sequences} == {FinishReason.LENGTH}


@pytest.mark.parametrize("room", range(10))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_slot_is_used_to_its_last_position(kind: str, room: int) -> None:
    """A slot of L tokens gives a prompt of P tokens L - P + 1 output tokens, also with K = 8."""
    plain = answer(tiny_engine(TARGET, slots=1), PROMPT, room + 1)
    engine = tiny_engine(TARGET, slots=2, max_len=len(PROMPT) + room)
    engine.load(DRAFTERS[kind](engine))

    sequences, _ = engine.generate(
        [request(PROMPT, max_tokens=50)] * 2, batch_size=2, num_speculative_tokens=8
    )

    assert [s.output_tokens for s in sequences] == [plain] * 2
    assert {s.finish_reason for s in sequences} == {FinishReason.LENGTH}


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_nothing_drafted_means_no_rate(max_tokens: int) -> None:
    """Without drafts the rates are absent, never 0/0, and the counters are valid JSON."""
    _, counters = tiny_engine(TARGET).generate(
        [request(PROMPT, max_tokens=max_tokens)], batch_size=1
    )

    assert counters.draft_acceptance_rate is None
    assert counters.mean_acceptance_length is None
    assert counters.acceptance_rate_per_pos == ()
    assert json.loads(json.dumps(asdict(counters), allow_nan=False))["num_draft_tokens"] == 0


def test_one_token_outputs_need_no_round() -> None:
    """With max_tokens = 1 and speculation on, prefill is all there is."""
    engine = tiny_engine(TARGET)
    engine.load(target_itself(engine))

    sequences, counters = engine.generate(
        [request(PROMPT, max_tokens=1)] * 3, batch_size=2, num_speculative_tokens=4
    )

    assert [len(s.output_tokens) for s in sequences] == [1, 1, 1]
    assert counters == SpecDecodeCounters()


def test_results_come_in_the_order_of_the_requests() -> None:
    """Short answers that free their slot early do not overtake others."""
    engine = tiny_engine(TARGET, slots=3)
    limits = [9, 1, 4, 1, 12, 2, 7]

    sequences, _ = engine.generate(
        [request(PROMPT, name=str(i), max_tokens=limit) for i, limit in enumerate(limits)],
        batch_size=3,
    )

    assert [s.request.request_id for s in sequences] == [str(i) for i in range(7)]
    assert [len(s.output_tokens) for s in sequences] == limits


def test_no_requests_give_no_answers() -> None:
    """An empty list is answered at once."""
    assert tiny_engine(TARGET).generate([], batch_size=2) == ([], SpecDecodeCounters())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft_temperature", [None, 0.0])
def test_nan_of_a_draft_is_an_error_and_harms_nobody(
    temperature: float, draft_temperature: float | None
) -> None:
    """A broken draft raises before anything is emitted; plain decoding can go on."""
    config = tiny_config(vocab_size=VOCAB)
    broken = tiny_weights(config, seed=1)
    broken["model.norm.weight"][3] = math.nan
    engine = tiny_engine(TARGET)
    engine.load(model_drafter(engine, Transformer.from_weights(config, broken)))
    engine.admit(0, request(PROMPT, temperature=temperature, max_tokens=9))
    engine.admit(1, request((4, 5), temperature=temperature, max_tokens=9))

    with pytest.raises(NumericError):
        engine.round(3, draft_temperature)

    assert [s.num_output_tokens for s in engine.sequences.values()] == [1, 1]
    untouched = tiny_engine(TARGET)
    untouched.admit(0, request(PROMPT, temperature=temperature, max_tokens=9))
    assert rounds_of(engine, 0)
    assert rounds_of(untouched, 0)
    assert engine.sequences[0].tokens == untouched.sequences[0].tokens


def test_an_error_in_the_middle_frees_the_slots() -> None:
    """After a failed run the engine takes another drafter and other requests."""
    engine = tiny_engine(TARGET)

    with pytest.raises(RequestError, match="unanswerable"):
        engine.generate(
            [request(PROMPT), request(PROMPT), request((VOCAB,), name="unanswerable")],
            batch_size=3,
        )

    engine.load(target_itself(engine))
    sequences, _ = engine.generate([request(PROMPT, max_tokens=3)], batch_size=1)
    assert len(sequences[0].output_tokens) == 3


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ((), "empty"),
        ((1,) * 11, "11 tokens"),
        ((1, VOCAB), f"outside 0..{VOCAB - 1}"),
        ((-1,), "outside"),
    ],
)
def test_impossible_prompts_are_refused_by_name(prompt: tuple[int, ...], reason: str) -> None:
    """One line that names the request and what is wrong."""
    engine = tiny_engine(TARGET, max_len=10)

    with pytest.raises(RequestError, match=f"request odd: .*{reason}"):
        engine.admit(0, request(prompt, name="odd"))

    assert not engine.sequences


def test_a_taken_slot_is_left_alone() -> None:
    """Admitting or resuming into it is refused before anything is overwritten."""
    engine = tiny_engine(TARGET)
    engine.admit(0, request(PROMPT, max_tokens=9))
    engine.admit(1, request((4, 5), max_tokens=9))
    snapshot, other = engine.cache.snapshot(1), engine.release(1)

    with pytest.raises(EngineError, match="slot 0 is taken"):
        engine.admit(0, request((7, 7, 7)))
    with pytest.raises(EngineError, match="slot 0 is taken"):
        engine.resume(0, other, snapshot, None)

    rounds_of(engine, 0)
    assert engine.sequences[0].output_tokens == answer(tiny_engine(TARGET, slots=1), PROMPT, 9)


def test_the_drafter_cannot_be_changed_under_running_requests() -> None:
    """Its state per slot would be missing."""
    engine = tiny_engine(TARGET)
    engine.admit(0, request(PROMPT))

    with pytest.raises(EngineError, match="while no request is running"):
        engine.load(None)


def test_drafting_without_a_drafter_is_refused() -> None:
    """K > 0 needs something to draft with."""
    engine = tiny_engine(TARGET)
    engine.admit(0, request(PROMPT))

    with pytest.raises(EngineError, match="K = 2: no drafter"):
        engine.round(2)


@pytest.mark.parametrize("batch_size", [0, -1, 9])
def test_a_batch_that_has_no_slots_is_refused(batch_size: int) -> None:
    """Zero rows would never end, and nine do not fit in eight slots."""
    with pytest.raises(EngineError, match=f"batch_size = {batch_size}"):
        tiny_engine(TARGET, slots=8).generate([request(PROMPT)], batch_size=batch_size)


def test_slots_longer_than_the_model_supports_are_refused() -> None:
    """Positions beyond the rotary tables do not exist."""
    with pytest.raises(EngineError, match="max_len = 257"):
        tiny_engine(TARGET, max_len=257)


def test_finished_requests_wait_untouched_until_released() -> None:
    """Rounds leave them alone, and an engine without running rows does nothing."""
    engine = tiny_engine(TARGET)
    engine.admit(0, request(PROMPT, max_tokens=2))
    engine.admit(3, request(PROMPT, max_tokens=5))
    slots = [[outcome.slot for outcome in engine.round()] for _ in range(5)]

    assert slots == [[0, 3], [3], [3], [3], []]
    assert len(engine.release(0).output_tokens) == 2
    assert len(engine.release(3).output_tokens) == 5


def test_recorded_log_probs_are_those_of_the_output() -> None:
    """One per emitted token, equal to plain forward passes, with and without speculation."""
    engine = tiny_engine(TARGET)
    engine.load(target_itself(engine))
    for num_speculative_tokens in (0, 3):
        engine.admit(0, request(PROMPT, temperature=0.8, max_tokens=12, seed=4))
        recorded: list[float] = []
        while engine.sequences[0].finish_reason is None:
            (outcome,) = engine.round(num_speculative_tokens, record=True)
            assert len(outcome.log_probs) == outcome.num_emitted
            recorded += outcome.log_probs
        tokens = engine.release(0).tokens

        expected = []
        for end in range(len(PROMPT) + 1, len(tokens)):
            logits = plain_logits(TARGET, [tuple(tokens[:end])])[0]
            expected.append(float(torch.log_softmax(logits / 0.8, -1)[tokens[end]]))
        assert recorded == pytest.approx(expected, abs=1e-4)

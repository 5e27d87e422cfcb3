"""Greedy output in float32 is the plain output, token by token, whatever drafts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.engine import Engine
from engine.model import Transformer
from engine.request import Request
from tests.support.scripted import ScriptedDrafter
from tests.support.tiny_models import (
    DRAFTERS,
    answer,
    random_prompt,
    request,
    target_itself,
    tiny_engine,
    tiny_model,
)

TARGET = tiny_model(7)
NUM_TOKENS = 24
PROMPTS = {
    "one token": (7,),
    "three tokens": random_prompt(1, 3),
    "seventeen tokens": random_prompt(2, 17),
    "sixty-four tokens": random_prompt(3, 64),
    "one word 48 times": (5,) * 48,
    "a phrase 9 times": (4, 8, 1, 1, 9) * 9,
}


@cache
def plain(prompt: tuple[int, ...]) -> list[int]:
    """Plain decoding of a prompt alone in a batch."""
    return answer(tiny_engine(TARGET, slots=1), prompt, NUM_TOKENS)


def requests() -> list[Request]:
    """Every prompt, as greedy requests."""
    return [request(prompt, name=name, max_tokens=NUM_TOKENS) for name, prompt in PROMPTS.items()]


def outputs(engine: Engine, *, batch_size: int, num_speculative_tokens: int) -> list[list[int]]:
    """Answers to all prompts."""
    sequences, _ = engine.generate(
        requests(), batch_size=batch_size, num_speculative_tokens=num_speculative_tokens
    )
    return [sequence.output_tokens for sequence in sequences]


def test_the_plain_outputs_are_worth_comparing() -> None:
    """The model does not repeat one token, and answers each prompt in its own way."""
    answers = [plain(prompt) for prompt in PROMPTS.values()]

    assert len({tuple(tokens) for tokens in answers}) == len(PROMPTS)
    assert all(len(set(tokens)) > 3 for tokens in answers)


@pytest.mark.parametrize("num_speculative_tokens", range(1, 9))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_mixed_batch_answers_as_each_prompt_alone(kind: str, num_speculative_tokens: int) -> None:
    """Prompts of 1 to 64 tokens, one word 48 times among them, in one batch."""
    engine = tiny_engine(TARGET, slots=len(PROMPTS))
    engine.load(DRAFTERS[kind](engine))

    found = outputs(engine, batch_size=len(PROMPTS), num_speculative_tokens=num_speculative_tokens)

    assert found == [plain(prompt) for prompt in PROMPTS.values()]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_slots_that_are_used_again_answer_alike(kind: str, batch_size: int) -> None:
    """A slot's former request leaves nothing behind, in the target or the drafter."""
    engine = tiny_engine(TARGET, slots=batch_size)
    engine.load(DRAFTERS[kind](engine))

    found = outputs(engine, batch_size=batch_size, num_speculative_tokens=3)

    assert found == [plain(prompt) for prompt in PROMPTS.values()]


@pytest.mark.parametrize("kind", DRAFTERS)
def test_k_may_change_from_round_to_round(kind: str) -> None:
    """Also to 0 and back: the drafter catches up with what it did not see."""
    engine = tiny_engine(TARGET, slots=len(PROMPTS))
    engine.load(DRAFTERS[kind](engine))
    for slot, asked in enumerate(requests()):
        engine.admit(slot, asked)

    for num_speculative_tokens in [3, 0, 0, 1, 8, 0, 2, 5, 0, 0, 0, 4] * 3:
        engine.round(num_speculative_tokens)

    found = [engine.release(slot).output_tokens for slot in range(len(PROMPTS))]
    assert found == [plain(prompt) for prompt in PROMPTS.values()]


@pytest.mark.parametrize("kind", DRAFTERS)
def test_requests_may_come_and_go(kind: str) -> None:
    """Rows that join or leave between rounds, in any slot, do not disturb the others."""
    engine = tiny_engine(TARGET, slots=4)
    engine.load(DRAFTERS[kind](engine))
    prompts = list(PROMPTS.values())
    engine.admit(2, request(prompts[0], max_tokens=NUM_TOKENS))
    engine.round(4)
    engine.admit(0, request(prompts[1], max_tokens=NUM_TOKENS))
    engine.admit(3, request(prompts[2], max_tokens=NUM_TOKENS))
    engine.round(4)
    engine.release(3)
    engine.admit(3, request(prompts[3], max_tokens=NUM_TOKENS))
    while engine.round(4):
        pass

    assert engine.release(2).output_tokens == plain(prompts[0])
    assert engine.release(0).output_tokens == plain(prompts[1])
    assert engine.release(3).output_tokens == plain(prompts[3])


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 4])
def test_rows_that_accept_differently_keep_their_own_length(num_speculative_tokens: int) -> None:
    """In every round each row accepts another number of drafts; none disturbs another's cache."""
    answers = {
        name: answer(tiny_engine(TARGET, slots=1), prompt, NUM_TOKENS + 8)
        for name, prompt in PROMPTS.items()
    }
    offsets = {name: i for i, name in enumerate(PROMPTS)}
    engine = tiny_engine(TARGET, slots=len(PROMPTS))
    engine.load(
        ScriptedDrafter(
            answers,
            lambda seq: (
                (offsets[seq.request.request_id] + seq.round_index) % (num_speculative_tokens + 1)
            ),
            TARGET.config.vocab_size,
        )
    )
    for slot, asked in enumerate(requests()):
        engine.admit(slot, asked)

    accepted = [outcome.num_accepted for outcome in engine.round(num_speculative_tokens)]
    assert set(accepted) == set(range(num_speculative_tokens + 1))
    while engine.round(num_speculative_tokens):
        pass

    found = [engine.release(slot).output_tokens for slot in range(len(PROMPTS))]
    assert found == [plain(prompt) for prompt in PROMPTS.values()]


@cache
def checkpoint() -> tuple[Transformer, tuple[int, ...]]:
    """A checkpoint with a 256-token limit, and its end tokens."""
    folder = Path(__file__).parents[2] / "data" / "checkpoints" / "H0_control_sharded"
    config = read_config(folder)
    return Transformer.from_weights(config, read_weights(folder, config)), config.eos_token_ids


@cache
def plain_to_the_limit(prompt: tuple[int, ...]) -> list[int]:
    """All the output that the checkpoint's context has room for."""
    return answer(tiny_engine(checkpoint()[0], slots=1), prompt, 1000)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 8])
def test_a_draft_that_is_the_target_accepts_everything(num_speculative_tokens: int) -> None:
    """Every position of every round to the model's 256-token limit, end tokens ignored."""
    target, eos_token_ids = checkpoint()
    engine = tiny_engine(target, slots=3, eos_token_ids=eos_token_ids)
    engine.load(target_itself(engine))
    prompts = [(65,), (81, 117, 101), tuple(range(40, 57))]
    for slot, prompt in enumerate(prompts):
        engine.admit(slot, request(prompt, max_tokens=1000, ignore_eos=True))

    while outcomes := engine.round(num_speculative_tokens):
        assert [o.num_accepted for o in outcomes] == [o.num_drafted for o in outcomes]

    for slot, prompt in enumerate(prompts):
        sequence = engine.release(slot)
        assert len(sequence.tokens) == 257
        assert sequence.output_tokens == plain_to_the_limit(prompt)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_temperature_near_zero_gives_the_greedy_output(kind: str) -> None:
    """T = 0, T = 1e-6 and both in one batch; T = 1e-6 is sampled, from all but certain rows."""
    prompts = list(PROMPTS.values())
    engine = tiny_engine(TARGET, slots=12)
    engine.load(DRAFTERS[kind](engine))
    for temperatures in ((0.0,), (1e-6,), (0.0, 1e-6)):
        asked = [
            request(prompt, temperature=temperature, max_tokens=16)
            for prompt in prompts
            for temperature in temperatures
        ]

        sequences, counters = engine.generate(
            asked, batch_size=len(asked), num_speculative_tokens=4
        )

        assert [s.output_tokens for s in sequences] == [
            plain(prompt)[:16] for prompt in prompts for _ in temperatures
        ]
        assert 0 <= counters.num_accepted_tokens <= counters.num_draft_tokens
        if counters.num_drafts:
            assert counters.draft_acceptance_rate is not None
            assert 0.0 <= counters.draft_acceptance_rate <= 1.0
    assert engine.num_fallbacks == 0


def test_the_draft_temperature_does_not_change_greedy_output() -> None:
    """Greedy requests are drafted greedily and verified by argmax, at any draft temperature."""
    for draft_temperature in (None, 0.0, 1.3):
        engine = tiny_engine(TARGET, slots=len(PROMPTS))
        engine.load(target_itself(engine))
        sequences, counters = engine.generate(
            requests(),
            batch_size=len(PROMPTS),
            num_speculative_tokens=4,
            draft_temperature=draft_temperature,
        )
        assert [s.output_tokens for s in sequences] == [plain(p) for p in PROMPTS.values()]
        assert counters.draft_acceptance_rate == 1.0

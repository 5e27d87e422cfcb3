"""The engine on native kernels alone: equal to the bit, whatever the batch and the drafts are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from engine.engine import Engine, RowOutcome
from engine.model import Transformer
from engine.request import Request
from tests.support.tiny_models import (
    DRAFTERS,
    random_prompt,
    request,
    target_itself,
    tiny_config,
    tiny_engine,
    tiny_weights,
)

NUM_TOKENS = 24
# Heads as wide as the kernels' vectors may be, so that attention is native too.
CONFIG = replace(tiny_config(vocab_size=40), head_dim=16)
TARGET = Transformer.from_weights(CONFIG, tiny_weights(CONFIG, 7, head_scale=1.5), backend="native")
LENGTHS = (1, 3, 17, 31, 32, 64)


def requests(temperature: float) -> list[Request]:
    """Prompts of several lengths; a block of keys ends within some of the answers."""
    return [
        request(
            random_prompt(length, length),
            name=str(length),
            temperature=temperature,
            top_p=0.9,
            seed=length,
            max_tokens=NUM_TOKENS,
        )
        for length in LENGTHS
    ]


def recorded(engine: Engine, temperature: float, batch_size: int) -> list[list[float]]:
    """Log-probabilities of every answer's tokens after the first, rounds without drafts."""
    found: dict[int, list[float]] = {}
    order: list[list[float]] = []

    def keep(outcomes: list[RowOutcome]) -> None:
        for outcome in outcomes:
            found.setdefault(outcome.slot, []).extend(outcome.log_probs)

    engine.generate(
        requests(temperature),
        batch_size=batch_size,
        record=True,
        on_round=keep,
        on_finish=lambda slot, _: order.append(found.pop(slot)),
    )
    return order


@cache
def plain(temperature: float) -> list[list[int]]:
    """The answers without a drafter, one at a time."""
    engine = tiny_engine(TARGET, slots=1)
    sequences, _ = engine.generate(requests(temperature), batch_size=1)
    return [sequence.output_tokens for sequence in sequences]


def test_the_answers_are_worth_comparing() -> None:
    """Each prompt is answered in its own way, and sampling is no greedy choice."""
    assert len({tuple(tokens) for tokens in plain(0.0)}) == len(LENGTHS)
    assert plain(0.0) != plain(1.0)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 6])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_answers_are_those_of_each_prompt_alone(
    kind: str, num_speculative_tokens: int
) -> None:
    """Every kind of drafter, in one batch of ragged rows."""
    engine = tiny_engine(TARGET, slots=len(LENGTHS))
    engine.load(DRAFTERS[kind](engine))

    sequences, _ = engine.generate(
        requests(0.0),
        batch_size=len(LENGTHS),
        num_speculative_tokens=num_speculative_tokens,
    )

    assert [sequence.output_tokens for sequence in sequences] == plain(0.0)


def test_sampled_answers_do_not_depend_on_the_batch() -> None:
    """Tokens and their log-probabilities, to the bit."""
    alone = recorded(tiny_engine(TARGET, slots=1), 1.0, 1)
    together = recorded(tiny_engine(TARGET, slots=len(LENGTHS)), 1.0, len(LENGTHS))

    assert sorted(alone) == sorted(together)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_never_rejects_its_own_drafts(temperature: float) -> None:
    """Drafting and verification see the same logits, one token at a time or seven at once."""
    engine = tiny_engine(TARGET, slots=len(LENGTHS))
    engine.load(target_itself(engine))

    _, counters = engine.generate(
        requests(temperature), batch_size=len(LENGTHS), num_speculative_tokens=6
    )

    assert counters.num_draft_tokens > 0
    assert counters.num_accepted_tokens == counters.num_draft_tokens

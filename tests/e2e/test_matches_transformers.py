"""The embedded model, decoded greedily by the engine and by transformers, in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.cache_folder import default_cache
from engine.checkpoint.config import read_config
from engine.checkpoint.hub import EMBEDDED, resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.model import Transformer
from engine.tokenizer import Tokenizer
from tests.support.tiny_models import request

NUM_TOKENS = 64
NEAR_TIE = 1e-3
MAX_LEN = 192
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Why is the sky blue? Answer in two sentences.",
    "Repeat this list in reverse order: apple, plum, cherry, fig, quince, pear.",
    "Tell me a short story about a lighthouse keeper and a storm.",
    "Extract the date and the amount: 'Invoice 4711 of 3 March 2021 over 1,250.00 EUR is due.'",
    "What is the difference between a list and a tuple?",
    "Translate to French: The train leaves at seven in the morning.",
    "Give three reasons to keep a diary.",
)

Answer = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The embedded model, fetched on first use."""
    return resolve_model(EMBEDDED, default_cache(), lambda _: None)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[tuple[int, ...]]:
    """Token ids of the prompts as chats."""
    tokenizer = Tokenizer(folder)
    return [
        tuple(tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": text}])))
        for text in PROMPTS
    ]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[tuple[int, ...]]) -> list[Answer]:
    """Per prompt: the greedy ids of transformers, and how far the second best logit was."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Its own settings would end the answers at an end token.
    model.generation_config.eos_token_id = None
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor(
        [[0] * pad + [*prompt] for pad, prompt in zip(padding, prompts, strict=True)]
    )
    out = model.generate(
        ids,
        attention_mask=(torch.arange(longest) >= torch.tensor(padding).unsqueeze(1)).long(),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits, dim=1).topk(2).values
    gaps = best[..., 0] - best[..., 1]
    return list(zip(out.sequences[:, longest:].tolist(), gaps.tolist(), strict=True))


@pytest.fixture(scope="module")
def target(folder: Path) -> Transformer:
    """The same weights in the engine."""
    config = read_config(folder)
    return Transformer.from_weights(config, read_weights(folder, config), max_len=MAX_LEN)


def difference(found: list[int], answer: Answer) -> str:
    """The first step that differs, in words; empty when there is none."""
    ids, gaps = answer
    for step, (mine, its) in enumerate(zip(found, ids, strict=True)):
        if mine != its:
            tie = " (a near tie: rounding may decide it)" if gaps[step] < NEAR_TIE else ""
            return f"step {step}: {mine}, transformers {its}, gap {gaps[step]:.2e}{tie}"
    return ""


DRAFTING: dict[str, tuple[int, Callable[[Engine], Drafter | None]]] = {
    "plain": (0, lambda engine: None),
    "ngram": (4, lambda engine: NgramDrafter("ngram", 8, min_n=1, max_n=3)),
}


@pytest.mark.parametrize("kind", DRAFTING)
def test_greedy_ids_equal_those_of_transformers(
    kind: str, target: Transformer, prompts: list[tuple[int, ...]], expected: list[Answer]
) -> None:
    """Eight chats of 64 tokens in one batch, plain and with speculation."""
    num_speculative_tokens, make_drafter = DRAFTING[kind]
    engine = Engine(target, eos_token_ids=(), max_batch_size=8, max_len=MAX_LEN)
    engine.load(make_drafter(engine))

    sequences, _ = engine.generate(
        [request(prompt, max_tokens=NUM_TOKENS) for prompt in prompts],
        batch_size=8,
        num_speculative_tokens=num_speculative_tokens,
    )

    differences = [
        f"prompt {i}: {text}"
        for i, (sequence, answer) in enumerate(zip(sequences, expected, strict=True))
        if (text := difference(sequence.output_tokens, answer))
    ]
    assert not differences

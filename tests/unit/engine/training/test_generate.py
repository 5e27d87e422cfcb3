"""Answers into shards: those of plain decoding, with the states of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model import Transformer
from engine.training.corpus import read_shards
from engine.training.generate import generate_corpus
from engine.training.teacher import Teacher
from tests.support.tiny_models import answer, random_prompt, request, tiny_engine
from tests.support.training import LAYERS, tiny_examples, tiny_teacher


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    """The target."""
    return tiny_teacher()


def model_of(teacher: Teacher) -> Transformer:
    """The target, able to run."""
    return Transformer.from_weights(teacher.config, teacher.weights, max_len=64)


def test_answers_are_the_targets_own(teacher: Teacher, tmp_path: Path) -> None:
    """Greedy ones equal plain decoding token for token; all requests are answered."""
    examples = tiny_examples(teacher, tmp_path, count=10)
    engine = tiny_engine(model_of(teacher))
    assert len(examples) == 10
    for example in examples:
        if example.temperature == 0.0:
            prompt = tuple(example.tokens[: example.prompt_len].tolist())
            found = example.tokens[example.prompt_len :].tolist()
            assert found == answer(engine, prompt, len(found))
    assert {example.task for example in examples} == {"code", "chat"}


def test_final_states_give_the_next_token(teacher: Teacher, tmp_path: Path) -> None:
    """The last layer's states times the head rank the greedy answer's tokens first."""
    hidden = teacher.config.hidden_size
    for example in tiny_examples(teacher, tmp_path):
        assert example.states.shape == (example.tokens.shape[0] - 1, len(LAYERS) * hidden)
        if example.temperature == 0.0:
            final = example.states[example.prompt_len - 1 :, -hidden:].float()
            logits = final @ teacher.output_rows.T
            chosen = logits.gather(1, example.tokens[example.prompt_len :].unsqueeze(1))
            # bfloat16 states may swap near ties, no more.
            assert float((logits.amax(dim=1) - chosen.squeeze(1)).max()) < 0.05


def test_first_states_are_the_embeddings(teacher: Teacher, tmp_path: Path) -> None:
    """Layer 0's input is the embedding of every token but the last."""
    example = tiny_examples(teacher, tmp_path, count=1)[0]
    expected = teacher.embedding[example.tokens[:-1]].bfloat16()
    assert torch.equal(example.states[:, : teacher.config.hidden_size], expected)


def test_stopping_keeps_what_is_under_way(teacher: Teacher, tmp_path: Path) -> None:
    """Cut-off answers are written; requests that were not begun are not."""
    engine = tiny_engine(model_of(teacher), slots=2)
    asked = [request(random_prompt(i, 4), name=str(i), max_tokens=30) for i in range(5)]
    rounds: list[int] = []
    written = generate_corpus(
        engine,
        asked,
        tmp_path,
        LAYERS,
        prefix="x",
        stop=lambda: len(rounds) >= 4,
        on_tokens=rounds.append,
    )
    (shard,) = read_shards(tmp_path)
    assert [example.num_answer_tokens for example in shard] == [5, 5]
    assert written == 10
    assert sum(rounds) == 8  # the first token of an answer comes with its prompt
    assert not engine.sequences
    assert engine.drafter is None


def test_an_answer_of_one_token_teaches_nothing(teacher: Teacher, tmp_path: Path) -> None:
    """An answer that ends with its first token is left out, and the others go on."""
    asked = [
        request(random_prompt(1, 4), name="short", max_tokens=1),
        request(random_prompt(2, 4), name="long", max_tokens=6),
        request(random_prompt(3, 4), name="two", max_tokens=2),
    ]
    engine = tiny_engine(model_of(teacher), slots=1)
    generate_corpus(engine, asked, tmp_path, LAYERS, prefix="x", stop=lambda: False)
    (shard,) = read_shards(tmp_path)
    assert [example.num_answer_tokens for example in shard] == [6]
    assert shard[0].states.shape[0] == shard[0].tokens.shape[0] - 1

"""Shards: what is written is read, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import TrainingError
from engine.training.corpus import Example, read_shards, write_shard
from engine.training.identity import data_facts, data_fingerprint

FIRST = Example(
    tokens=torch.tensor([3, 1, 4, 1, 5]),
    prompt_len=2,
    temperature=0.7,
    task="chat",
    states=torch.randn(4, 6).bfloat16(),
)
SECOND = Example(
    tokens=torch.tensor([2, 7, 1]),
    prompt_len=1,
    temperature=0.0,
    task="code",
    states=torch.randn(2, 6).bfloat16(),
)


def same(a: Example, b: Example) -> bool:
    """Whether two examples are equal."""
    about = (a.prompt_len, a.temperature, a.task) == (b.prompt_len, b.temperature, b.task)
    return about and torch.equal(a.tokens, b.tokens) and torch.equal(a.states, b.states)


def test_round_trip(tmp_path: Path) -> None:
    """Tokens, states and what is said of them, in order, over several shards."""
    write_shard(tmp_path / "b-0.safetensors", [SECOND])
    write_shard(tmp_path / "a-0.safetensors", [FIRST, SECOND])
    shards = list(read_shards(tmp_path))
    assert [len(shard) for shard in shards] == [2, 1]
    assert same(shards[0][0], FIRST)
    assert same(shards[0][1], SECOND)
    assert same(shards[1][0], SECOND)
    assert shards[0][0].tokens.dtype == torch.int64


def test_only_whole_shards_are_there(tmp_path: Path) -> None:
    """An unfinished file is not taken for a shard, and none is left behind."""
    write_shard(tmp_path / "a.safetensors", [FIRST])
    (tmp_path / "b.part").write_bytes(b"half")
    assert len(list(read_shards(tmp_path))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors", "b.part"}


@pytest.mark.parametrize("content", [b"", b"no shard", None])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    """Cut short or something else: the error says which file."""
    path = tmp_path / "a.safetensors"
    write_shard(path, [FIRST])
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    with pytest.raises(TrainingError, match=r"a\.safetensors: not a shard"):
        list(read_shards(tmp_path))


def test_fingerprint_is_of_what_was_said(tmp_path: Path) -> None:
    """States and shards do not count; tokens, where the answer begins, temperature and task do."""
    both = data_fingerprint([FIRST, SECOND])
    moved = replace(FIRST, states=FIRST.states + 1)
    assert data_fingerprint([moved, SECOND]) == both
    changed = FIRST.tokens.clone()
    changed[-1] += 1
    for other in (
        replace(FIRST, tokens=changed),
        replace(FIRST, prompt_len=3),
        replace(FIRST, temperature=0.8),
        replace(FIRST, task="copy"),
    ):
        assert data_fingerprint([other, SECOND]) != both
    assert data_fingerprint([SECOND, FIRST]) != both


def test_facts_count_distinct_answers() -> None:
    """The same answer to two prompts is one distinct answer."""
    other_prompt = replace(FIRST, tokens=torch.tensor([9, 9, 4, 1, 5]))
    facts = data_facts([FIRST, other_prompt, SECOND])
    assert (facts.num_answers, facts.num_distinct_answers) == (3, 2)
    assert facts.num_answer_tokens == 3 + 3 + 2
    assert facts.answers_by_task == {"chat": 2, "code": 1}

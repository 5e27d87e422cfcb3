"""Answering into a folder: bounds hold, and a killed run answers only what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autotune.training.answers
from autotune.errors import ConfigError
from autotune.training.answers import Bounds, answer, read_answers
from engine.engine import Engine
from engine.model import Transformer
from engine.request import Request
from engine.training.corpus import read_shards
from tests.support.tiny_models import random_prompt, request, tiny_engine
from tests.support.training import tiny_teacher

LAYERS = (3,)


class KilledError(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.fixture
def engine() -> Engine:
    """A tiny target with two slots."""
    teacher = tiny_teacher()
    model = Transformer.from_weights(teacher.config, teacher.weights, max_len=64)
    return tiny_engine(model, slots=2)


def requests(count: int, max_tokens: int = 8) -> list[Request]:
    """Sampled requests with prompts of their own."""
    return [
        request(random_prompt(i, 5), name=str(i), temperature=1.0, max_tokens=max_tokens, seed=i)
        for i in range(count)
    ]


def prompts(folder: Path) -> list[tuple[int, ...]]:
    """The prompts that were answered."""
    return sorted(tuple(e.tokens[: e.prompt_len].tolist()) for e in read_answers(folder))


def quiet(share: float, num_tokens: int) -> None:
    """Progress that nobody looks at."""


def test_all_are_answered_once(engine: Engine, tmp_path: Path) -> None:
    """The same prompt asked twice is answered twice; a second call adds nothing."""
    asked = [*requests(4), requests(1)[0]]
    told: list[tuple[float, int]] = []
    answer(engine, asked, tmp_path / "a", LAYERS, Bounds(), lambda *x: told.append(x))
    assert prompts(tmp_path / "a") == sorted(r.prompt_tokens for r in asked)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert 0 < shares[0] <= shares[-1] <= 1
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    answer(engine, requests(9), tmp_path / "a", LAYERS, Bounds(), quiet)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before


def test_a_killed_run_answers_what_is_left(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are kept and no prompt is answered twice."""
    monkeypatch.setattr("engine.training.generate._SHARD_EXAMPLES", 2)
    seen = 0

    def kill(share: float, num_tokens: int) -> None:
        nonlocal seen
        seen = num_tokens
        if num_tokens > 30:
            raise KilledError

    with pytest.raises(KilledError):
        answer(engine, requests(8), tmp_path, LAYERS, Bounds(), kill)
    kept = prompts(tmp_path)
    assert 0 < len(kept) < 8
    teacher = tiny_teacher()
    model = Transformer.from_weights(teacher.config, teacher.weights, max_len=64)

    answer(tiny_engine(model, slots=2), requests(8), tmp_path, LAYERS, Bounds(), quiet)

    found = prompts(tmp_path)
    assert set(kept) <= set(found)
    assert found == sorted(r.prompt_tokens for r in requests(8))


def test_time_is_counted_over_all_starts(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier start spent is spent; once time is up nothing is added any more."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr(autotune.training.answers, "monotonic", clock)
    (tmp_path / "answering.json").write_text(
        json.dumps({"elapsed_s": 95.0, "num_starts": 1, "finished": False})
    )
    answer(engine, requests(50, 20), tmp_path, LAYERS, Bounds(seconds=100.0), quiet)
    standing = json.loads((tmp_path / "answering.json").read_text())
    assert standing["finished"]
    assert standing["num_starts"] == 2
    assert 100.0 <= standing["elapsed_s"] < 110.0
    count = len(prompts(tmp_path))
    answer(engine, requests(50, 20), tmp_path, LAYERS, Bounds(seconds=100.0), quiet)
    assert len(prompts(tmp_path)) == count < 50


def test_size_is_bounded(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder ends below its limit, answers in flight included, and is not empty."""
    monkeypatch.setattr("engine.training.generate._SHARD_EXAMPLES", 2)
    monkeypatch.setattr(autotune.training.answers, "_UNWRITTEN_ANSWERS", 2)
    limit = 12_000
    answer(engine, requests(60), tmp_path, LAYERS, Bounds(size_bytes=limit), quiet)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert limit / 2 < size <= limit
    assert len(prompts(tmp_path)) < 60


def test_short_answers_are_not_learned_from(engine: Engine, tmp_path: Path) -> None:
    """An answer of two tokens or fewer has nothing to draft."""
    answer(engine, requests(3, max_tokens=2), tmp_path, LAYERS, Bounds(), quiet)
    assert read_answers(tmp_path) == []
    assert list(read_shards(tmp_path)) == []


def test_a_damaged_note_is_named(engine: Engine, tmp_path: Path) -> None:
    """One line with the file and the remedy."""
    (tmp_path / "answering.json").write_text("{")
    with pytest.raises(ConfigError, match=r"answering\.json: cannot be read .*remove"):
        answer(engine, requests(1), tmp_path, LAYERS, Bounds(), quiet)

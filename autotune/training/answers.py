"""Answering prompts into a folder, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from autotune.errors import ConfigError
from engine.engine import Engine
from engine.request import Request
from engine.training.corpus import Example, read_shards
from engine.training.generate import generate_corpus

_STATE_NAME = "answering.json"
_SAVE_EVERY_S = 5.0
_BYTES_PER_STATE = 2
_MIN_ANSWER_TOKENS = 3
_UNWRITTEN_ANSWERS = 64  # finished answers that wait for their shard


@dataclass(slots=True)
class _Standing:
    """How far a folder of answers is.

    Attributes:
        elapsed_s: Seconds spent.
        num_starts: Times it was begun or gone on with; each writes shards of its own names.
        finished: Nothing is to be added.
    """

    elapsed_s: float = 0.0
    num_starts: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """When to stop although there are requests left.

    Attributes:
        seconds: Over all starts together; None for no limit.
        size_bytes: Of the folder; None for no limit.
    """

    seconds: float | None = None
    size_bytes: float | None = None


def answer(
    engine: Engine,
    requests: Sequence[Request],
    folder: Path,
    feature_layers: tuple[int, ...],
    bounds: Bounds,
    on_progress: Callable[[float, int], None],
) -> None:
    """Answer the requests that the folder has no answer to yet.

    Args:
        engine: Holds the target.
        requests: In order of importance.
        folder: Made if missing.
        feature_layers: States to keep, as in `StateRecorder`.
        bounds: When to stop.
        on_progress: Told the share that is done and the answer tokens of this start.

    Raises:
        TrainingError: A file of the folder is damaged.
        ConfigError: As `_load`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    standing = _load(folder)
    if standing.finished:
        return
    standing.num_starts += 1
    remaining = _unanswered(requests, folder)
    expected = sum(request.params.max_tokens for request in remaining) or 1
    began, before_s, saved = monotonic(), standing.elapsed_s, monotonic()
    state_bytes = engine.target.config.hidden_size * len(feature_layers) * _BYTES_PER_STATE
    _save(folder, standing)
    num_tokens = 0

    def stop() -> bool:
        nonlocal saved
        standing.elapsed_s = before_s + monotonic() - began
        if monotonic() - saved >= _SAVE_EVERY_S:
            saved = monotonic()
            _save(folder, standing)
        if bounds.seconds is not None and standing.elapsed_s >= bounds.seconds:
            return True
        return bounds.size_bytes is not None and _size(folder, engine, state_bytes) >= (
            bounds.size_bytes
        )

    def on_tokens(count: int) -> None:
        nonlocal num_tokens
        num_tokens += count
        share = num_tokens / expected
        if bounds.seconds is not None:
            share = max(share, standing.elapsed_s / bounds.seconds)
        on_progress(min(share, 1.0), num_tokens)

    generate_corpus(
        engine,
        remaining,
        folder,
        feature_layers,
        prefix=f"{standing.num_starts:04d}",
        stop=stop,
        on_tokens=on_tokens,
    )
    standing.finished = True
    _save(folder, standing)


def read_answers(folder: Path) -> list[Example]:
    """The answers of a folder that are long enough to draft in.

    Raises:
        TrainingError: A file of the folder is damaged.
    """
    return [
        example
        for shard in read_shards(folder)
        for example in shard
        if example.num_answer_tokens >= _MIN_ANSWER_TOKENS
    ]


def _unanswered(requests: Sequence[Request], folder: Path) -> list[Request]:
    """The requests without those that a shard answers, counted with repetition."""
    answered = Counter(
        (tuple(example.tokens[: example.prompt_len].tolist()), example.temperature)
        for shard in read_shards(folder)
        for example in shard
    )
    remaining = []
    for request in requests:
        key = (request.prompt_tokens, request.params.temperature)
        if answered[key] > 0:
            answered[key] -= 1
        else:
            remaining.append(request)
    return remaining


def _size(folder: Path, engine: Engine, state_bytes: int) -> float:
    """Bytes on disk once what is in memory is written; answers in wait count as long ones."""
    running = sum(len(sequence.tokens) for sequence in engine.sequences.values())
    longest = max((len(sequence.tokens) for sequence in engine.sequences.values()), default=0)
    waiting = _UNWRITTEN_ANSWERS * longest
    on_disk = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return on_disk + (running + waiting) * state_bytes


def _load(folder: Path) -> _Standing:
    """Where the folder stands.

    Raises:
        ConfigError: Its note cannot be read.
    """
    path = folder / _STATE_NAME
    if not path.exists():
        return _Standing()
    try:
        return _Standing(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); remove {folder.parent}") from error


def _save(folder: Path, standing: _Standing) -> None:
    scratch = folder / f"{_STATE_NAME}.part"
    scratch.write_text(json.dumps(asdict(standing)), encoding="utf-8")
    scratch.replace(folder / _STATE_NAME)

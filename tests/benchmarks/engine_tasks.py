"""The requests of `bench_engine`: cut from the held-out prompts, the same ids for everybody."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.tokenizer import Tokenizer
from tests.benchmarks.contest import Task

ASSISTED = "assisted"
_HELDOUT = Path(__file__).resolve().parents[2] / "assets" / "drafters" / "recipe" / "heldout.jsonl"
_PROMPT_TOKENS = 32
_MAX_TOKENS = 64
_MIN_REQUESTS = 2  # a single request at batch 1 would be over too soon


def plain_name(batch: int) -> str:
    """Name of the task that decodes without drafts."""
    return f"batch {batch}"


def plain_tasks(tokenizer: Tokenizer, batches: Sequence[int]) -> list[Task]:
    """Plain decoding at every batch size, short prompts of equal length."""
    prompts = short_prompts(tokenizer, max(*batches, _MIN_REQUESTS))
    return [
        Task(
            name=plain_name(batch),
            batch=batch,
            prompts=prompts[: max(batch, _MIN_REQUESTS)],
            max_tokens=_MAX_TOKENS,
        )
        for batch in batches
    ]


def short_prompts(tokenizer: Tokenizer, count: int) -> tuple[tuple[int, ...], ...]:
    """The held-out texts one after the other, cut into pieces of equal length.

    Raises:
        ValueError: There are not as many pieces.
    """
    text = "\n\n".join(body["messages"][0]["content"] for body in _heldout())
    ids = tokenizer.encode(text)
    num_pieces = len(ids) // _PROMPT_TOKENS
    if num_pieces < count:
        raise ValueError(f"{_HELDOUT}: {num_pieces} prompts of {_PROMPT_TOKENS} tokens of {count}")
    return tuple(
        tuple(ids[piece * _PROMPT_TOKENS : (piece + 1) * _PROMPT_TOKENS]) for piece in range(count)
    )


def assisted_task(tokenizer: Tokenizer, num_drafts: int) -> Task:
    """One held-out chat of each kind, one after the other, with a draft model."""
    chats: dict[str, tuple[int, ...]] = {}
    for body in _heldout():
        ids = tokenizer.encode(tokenizer.render_chat(body["messages"]))
        chats.setdefault(body["metadata"]["task"], tuple(ids))
    return Task(
        name=ASSISTED,
        batch=1,
        prompts=tuple(chats.values()),
        max_tokens=_MAX_TOKENS,
        num_drafts=num_drafts,
    )


def request_len(task: Task) -> int:
    """Tokens of the longest request with its answer."""
    return max(len(prompt) for prompt in task.prompts) + task.max_tokens


def _heldout() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _HELDOUT.read_text(encoding="utf-8").splitlines()]

"""Files of requests, as small as a test needs them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def prompt(text: str, *, task: str = "copy", **values: Any) -> dict[str, Any]:
    """A completions body; greedy and short unless told otherwise."""
    return {"prompt": text, "temperature": 0.0, "max_tokens": 12, "metadata": {"task": task}} | (
        values
    )


def chat(text: str, *, task: str = "chat", **values: Any) -> dict[str, Any]:
    """A chat body; greedy and short unless told otherwise."""
    body = prompt("", task=task, messages=[{"role": "user", "content": text}], **values)
    del body["prompt"]
    return body


def write_traffic(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One request per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mixed(num_requests: int = 8) -> list[dict[str, Any]]:
    """Greedy and sampled, chats and prompts, two tasks, some of it repetitive."""
    rows = []
    for i in range(num_requests):
        make, task = (chat, "chat") if i % 2 else (prompt, "copy")
        rows.append(
            make(
                f"row {i}: " + "abc " * (1 + i % 5),
                task=task,
                temperature=0.0 if i % 4 < 2 else 0.8,
                max_tokens=10 + i,
            )
        )
    return rows

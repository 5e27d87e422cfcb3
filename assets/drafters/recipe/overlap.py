"""Measures how many word sequences two sets of prompts share."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    """Gives the word sequences of a text.

    Args:
        text: Any text.
        size: The number of words of a sequence.

    Returns:
        All sequences of that length, in lower case and without punctuation.
    """
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def all_ngrams(texts: Iterable[str], size: int) -> set[tuple[str, ...]]:
    """Gives the word sequences of many texts.

    Args:
        texts: The texts.
        size: The number of words of a sequence.

    Returns:
        The union of the sequences.
    """
    return set().union(*(ngrams(text, size) for text in texts))


def shared(texts: Iterable[str], known: set[tuple[str, ...]], size: int) -> int:
    """Counts the texts that have a word sequence in common with known ones.

    Args:
        texts: The texts to check.
        known: The known sequences.
        size: The number of words of a sequence.

    Returns:
        The number of texts with at least one known sequence.
    """
    return sum(not ngrams(text, size).isdisjoint(known) for text in texts)


def body_text(body: dict[str, Any]) -> str:
    """Joins what all roles but the system say in a request body.

    Args:
        body: A request body with messages.

    Returns:
        The text of its messages.
    """
    said = [m for m in body["messages"] if m["role"] != "system"]
    return "\n".join(str(m["content"]) for m in said)


def workload_texts(path: Path) -> list[str]:
    """Reads the texts of a workload file.

    Args:
        path: A JSONL file of request bodies.

    Returns:
        One text a request.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return [body_text(json.loads(line)) for line in lines if line.strip()]

"""What identifies training data, so that a drafter can say what it learned from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.training.corpus import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """A set of answers in figures.

    Attributes:
        sha256: `data_fingerprint`.
        num_answers: Answers.
        num_distinct_answers: Different ones: a greedy target repeats itself.
        num_answer_tokens: Tokens after the prompts.
        answers_by_task: Answers of each task.
    """

    sha256: str
    num_answers: int
    num_distinct_answers: int
    num_answer_tokens: int
    answers_by_task: dict[str, int]


def data_facts(examples: Sequence[Example]) -> DataFacts:
    """Count and fingerprint a set of answers."""
    answers = {_digest(example.tokens[example.prompt_len :]) for example in examples}
    return DataFacts(
        sha256=data_fingerprint(examples),
        num_answers=len(examples),
        num_distinct_answers=len(answers),
        num_answer_tokens=sum(example.num_answer_tokens for example in examples),
        answers_by_task=dict(sorted(Counter(example.task for example in examples).items())),
    )


def data_fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 over tokens, prompt lengths, temperatures and tasks, in order.

    States are left out: they follow from the tokens and the target, and their last bits from the
    machine. How the answers are split into shards does not matter.
    """
    digest = hashlib.sha256()
    for example in examples:
        about = (example.task, example.temperature, example.prompt_len, example.tokens.shape[0])
        digest.update(repr(about).encode())
        digest.update(_bytes(example.tokens))
    return digest.hexdigest()


def _digest(tokens: torch.Tensor) -> bytes:
    return hashlib.sha256(_bytes(tokens)).digest()


def _bytes(tokens: torch.Tensor) -> bytes:
    found: bytes = tokens.to(torch.int32).numpy().tobytes()
    return found

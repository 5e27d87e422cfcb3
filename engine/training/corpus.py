"""The target's answers with its hidden states: what drafters are trained on, as files.

A corpus is a folder of shards. Each shard is one safetensors file that appears whole or not at
all, so a killed run loses no more than the answers it had not written yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One answer of the target.

    Attributes:
        tokens: [n] int64, prompt and answer.
        prompt_len: Tokens of the prompt.
        temperature: Temperature the answer was sampled at.
        task: Bucket of the request.
        states: [n - 1, width] bfloat16, the target's states at every token but the last: those of
            the corpus's feature layers side by side.
    """

    tokens: Tensor
    prompt_len: int
    temperature: float
    task: str
    states: Tensor

    @property
    def num_answer_tokens(self) -> int:
        """Tokens after the prompt."""
        return self.tokens.shape[0] - self.prompt_len


def write_shard(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as one file.

    Args:
        path: File to create; replaced if it exists.
        examples: At least one.
    """
    described = [
        {"prompt_len": e.prompt_len, "temperature": e.temperature, "task": e.task} for e in examples
    ]
    scratch = path.with_suffix(".part")
    save_file(
        {
            "tokens": torch.cat([e.tokens for e in examples]).to(torch.int32),
            "lengths": torch.tensor([e.tokens.shape[0] for e in examples]),
            "states": torch.cat([e.states for e in examples]).contiguous(),
        },
        scratch,
        metadata={"examples": json.dumps(described)},
    )
    scratch.rename(path)


def read_shards(folder: Path) -> Iterator[list[Example]]:
    """The shards of a corpus in the order of their names.

    Raises:
        TrainingError: A file is not a shard.
    """
    for path in sorted(folder.glob("*.safetensors")):
        yield _read_shard(path)


def _read_shard(path: Path) -> list[Example]:
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()["examples"])
            tokens = file.get_tensor("tokens").long()
            lengths = file.get_tensor("lengths").tolist()
            states = file.get_tensor("states")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"{path}: not a shard of a training corpus ({error})") from error
    return [
        Example(tokens=row, states=held, **about)
        for row, held, about in zip(
            tokens.split(lengths), states.split([n - 1 for n in lengths]), described, strict=True
        )
    ]

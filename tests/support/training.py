"""Small targets, answers and students for the tests of training."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.eagle3.head import Eagle3Head
from engine.model import Transformer
from engine.training.corpus import Example, read_shards
from engine.training.eagle3 import Eagle3Student, new_head
from engine.training.generate import generate_corpus
from engine.training.pruned import PrunedDraft, PrunedStudent, new_draft
from engine.training.teacher import Teacher
from tests.support.checkpoints import Weights, changed_copy
from tests.support.tiny_models import (
    random_prompt,
    request,
    tiny_config,
    tiny_engine,
    tiny_weights,
)

VOCAB = 12
LAYERS = (0, 1, 2, 3)
"""States that are kept: three that a head reads, and the final ones."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def tiny_teacher(seed: int = 1) -> Teacher:
    """A target of three layers."""
    config = tiny_config()
    return Teacher.from_weights(config, tiny_weights(config, seed), 128)


def tiny_examples(
    teacher: Teacher, folder: Path, *, count: int = 8, max_tokens: int = 12, first: int = 0
) -> list[Example]:
    """Its answers: two tasks, greedy and sampled."""
    engine = tiny_engine(Transformer.from_weights(teacher.config, teacher.weights, max_len=64))
    asked = [
        replace(
            request(
                random_prompt(first + index, 3 + index % 4),
                name=str(index),
                temperature=0.0 if index % 2 else 1.0,
                max_tokens=max_tokens,
                seed=index,
            ),
            task="code" if index % 4 < 2 else "chat",
        )
        for index in range(count)
    ]
    folder.mkdir(exist_ok=True)
    generate_corpus(engine, asked, folder, LAYERS, prefix="p", stop=lambda: False)
    return [example for shard in read_shards(folder) for example in shard]


def tiny_head(teacher: Teacher, columns: Tensor | None = None) -> Eagle3Head:
    """A head with its first weights."""
    ids = torch.tensor([1, 2, 5, 6, 7, 9, 11]) if columns is None else columns
    return new_head(
        Eagle3Config(
            decoder=replace(teacher.config, num_layers=1),
            draft_vocab_size=ids.shape[0],
            target_hidden_size=teacher.config.hidden_size,
            feature_layers=LAYERS[:3],
            norm_before_residual=False,
        ),
        teacher,
        ids,
    )


def tiny_draft(teacher: Teacher, kept: tuple[int, ...] = (0, 2)) -> PrunedDraft:
    """A pruned draft with its first weights."""
    return new_draft(replace(teacher.config, num_layers=len(kept)), teacher, kept)


def eagle3_student(teacher: Teacher) -> Eagle3Student:
    """A head in training that can draft every token."""
    return Eagle3Student(tiny_head(teacher, torch.arange(VOCAB)), teacher)


def pruned_student(teacher: Teacher) -> PrunedStudent:
    """A pruned draft in training."""
    return PrunedStudent(tiny_draft(teacher), teacher, torch.arange(4), 0)


def deeper_target(folder: Path, num_layers: int = 4) -> Path:
    """A checkpoint with a tokenizer and enough layers for either method."""

    def repeat(weights: Weights) -> Weights:
        grown = dict(weights)
        for name, tensor in weights.items():
            if match := _LAYER.match(name):
                for index in range(int(match[1]), num_layers, 2):
                    grown[f"model.layers.{index}.{match[2]}"] = tensor.clone()
        return grown

    return changed_copy(folder, repeat, num_hidden_layers=num_layers)

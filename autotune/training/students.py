"""What the two kinds of drafters need: states, a student to train, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autotune.errors import ConfigError
from autotune.training.settings import TrainSettings
from engine.checkpoint.config import ModelConfig
from engine.checkpoint.eagle3_config import Eagle3Config
from engine.training.corpus import Example
from engine.training.eagle3 import Eagle3Student, new_head
from engine.training.export import write_eagle3, write_pruned
from engine.training.pruned import PrunedStudent, new_draft
from engine.training.student import Student
from engine.training.teacher import Teacher, frequent_tokens

_MIN_LAYERS_OF_RULE = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Apprentice:
    """A student with what its card says of it.

    Attributes:
        student: What is trained.
        layers: The target's layers that it reads or started from.
        draft_vocab_size: Tokens it can draft; None where there is no limit.
        write: Writes its model files into a folder.
    """

    student: Student
    layers: tuple[int, ...]
    draft_vocab_size: int | None
    write: Callable[[Path], None]

    @property
    def num_parameters(self) -> int:
        """Trained parameters."""
        return sum(parameter.numel() for parameter in self.student.module.parameters())


def check_target(settings: TrainSettings, config: ModelConfig) -> None:
    """Refuse settings that the target cannot fulfil, before any work.

    Raises:
        ConfigError: One of them is out of range.
    """
    depth = config.num_layers
    if settings.method == "layer-pruned" and settings.num_layers >= depth:
        raise ConfigError(
            f"num_layers = {settings.num_layers}: the target has {depth} layers, a pruned draft "
            f"keeps 1 to {depth - 1}"
        )
    if settings.method == "eagle3" and depth < 3:
        raise ConfigError(
            f"method = 'eagle3': reads three layers of the target, {settings.target} has {depth}"
        )


def recorded_layers(method: str, config: ModelConfig) -> tuple[int, ...]:
    """The states to keep of every token; the last are those after the final norm."""
    features = feature_layers(config.num_layers) if method == "eagle3" else ()
    return (*features, config.num_layers)


def feature_layers(num_layers: int) -> tuple[int, int, int]:
    """The inputs of an early, a middle and a late layer.

    Source: the reference implementation of EAGLE-3 takes 2, half and the last but three; models
    too flat for that give their first, middle and last.
    """
    if num_layers < _MIN_LAYERS_OF_RULE:
        return 0, num_layers // 2, num_layers - 1
    return 2, num_layers // 2, num_layers - 3


def kept_layers(num_layers: int, target_layers: int) -> tuple[int, ...]:
    """The layers a pruned draft starts from: the last, the first, and evenly between them."""
    if num_layers == 1:
        return (target_layers - 1,)
    step = (target_layers - 1) / (num_layers - 1)
    return tuple(round(index * step) for index in range(num_layers))


def make_apprentice(
    settings: TrainSettings,
    target_folder: Path,
    teacher: Teacher,
    examples: Sequence[Example],
) -> Apprentice:
    """A student with its first weights, the same ones for the same seed."""
    config = teacher.config
    torch.manual_seed(settings.seed)
    size = min(settings.draft_vocab_size, config.vocab_size)
    frequent = frequent_tokens(examples, size, config.vocab_size, config.eos_token_ids)
    if settings.method == "eagle3":
        layers = feature_layers(config.num_layers)
        # A head has no biases, whatever the target has.
        decoder = replace(config, num_layers=1, qkv_bias=False, tie_word_embeddings=False)
        head = new_head(
            Eagle3Config(
                decoder=decoder,
                draft_vocab_size=size,
                target_hidden_size=config.hidden_size,
                feature_layers=layers,
                norm_before_residual=False,
            ),
            teacher,
            frequent,
        )
        return Apprentice(
            student=Eagle3Student(head, teacher),
            layers=layers,
            draft_vocab_size=size,
            write=lambda folder: write_eagle3(head, folder),
        )
    kept = kept_layers(settings.num_layers, config.num_layers)
    draft = new_draft(replace(config, num_layers=len(kept)), teacher, kept)
    return Apprentice(
        student=PrunedStudent(draft, teacher, frequent, settings.seed),
        layers=kept,
        draft_vocab_size=None,
        write=lambda folder: write_pruned(draft, target_folder, folder),
    )

"""Writes a layer-skip drafter as a model folder of its own, for servers that load drafts by folder.

Inside this engine a layer-skip drafter is no copy: it runs the target's first layers in place.
A serving engine that knows only "draft model in a folder" gets the same function as files: the
target's configuration with fewer layers, the tensors of those layers, and the shared embedding,
final norm and head.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from engine.checkpoint.config import CONFIG_NAME
from engine.checkpoint.files import read_json
from engine.checkpoint.model_folder import (
    copy_tokenizer,
    new_folder,
    read_wanted,
    with_fewer_layers,
    write_model,
)
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD
from engine.errors import CheckpointError, WeightsError

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")
_IN_EVERY_LAYER = "input_layernorm.weight"


def write_layer_skip(target_folder: Path, num_layers: int, out: Path) -> None:
    """Write the first `num_layers` layers of a target as a draft folder in Hugging Face layout.

    The folder appears whole or not at all: it is written beside `out` and then renamed.

    Args:
        target_folder: Target in Hugging Face layout, safetensors in one file or in shards.
        num_layers: Layers to keep, at least 1 and fewer than the target has.
        out: Folder to create; may exist if it is empty. Missing parents are made.

    Raises:
        CheckpointError: `num_layers` is out of range, `out` is not empty or cannot be written,
            or a file of the target cannot be used.
        WeightsError: Tensors are missing, damaged, or not in safetensors files.
    """
    config = read_json(target_folder / CONFIG_NAME)
    target_layers = config.integer("num_hidden_layers", low=1, high=100_000)
    if not 1 <= num_layers < target_layers:
        raise CheckpointError(
            f"num_layers = {num_layers}: a layer-skip drafter of {target_folder} keeps 1 to "
            f"{target_layers - 1} of its {target_layers} layers"
        )
    tied = config.flag("tie_word_embeddings", default=False)
    tensors = _read_kept(target_folder, num_layers, tied=tied)
    with new_folder(out) as folder:
        write_model(folder, with_fewer_layers(config.values, num_layers), tensors)
        copy_tokenizer(target_folder, folder)


def _read_kept(target_folder: Path, num_layers: int, *, tied: bool) -> dict[str, Tensor]:
    """Tensors outside the layers, and those of the first `num_layers`, by name."""

    def wanted(name: str) -> bool:
        layer = _LAYER.match(name)
        skipped_layer = layer is not None and int(layer[1]) >= num_layers
        return not skipped_layer and not (tied and name == OUTPUT_HEAD)

    kept = read_wanted(target_folder, wanted)
    parts = {match[2] for match in map(_LAYER.match, kept) if match} | {_IN_EVERY_LAYER}
    needed = {f"model.layers.{i}.{part}" for i in range(num_layers) for part in parts}
    needed |= {EMBEDDING, "model.norm.weight"} | (set() if tied else {OUTPUT_HEAD})
    missing = sorted(needed - kept.keys())
    if missing:
        raise WeightsError(f"{target_folder}: tensor {missing[0]} is missing")
    return kept

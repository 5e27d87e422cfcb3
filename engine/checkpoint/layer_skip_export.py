"""Writes a layer-skip drafter as a model folder of its own, for servers that load drafts by folder.

Inside this engine a layer-skip drafter is no copy: it runs the target's first layers in place.
A serving engine that knows only "draft model in a folder" gets the same function as files: the
target's configuration with fewer layers, the tensors of those layers, and the shared embedding,
final norm and head.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.files import LFS_POINTER_PROBLEM, is_lfs_pointer, read_json
from engine.errors import CheckpointError, WeightsError

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HEAD = "lm_head.weight"
_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")
_IN_EVERY_LAYER = "input_layernorm.weight"
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


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
    config = read_json(target_folder / "config.json")
    target_layers = config.integer("num_hidden_layers", low=1, high=100_000)
    if not 1 <= num_layers < target_layers:
        raise CheckpointError(
            f"num_layers = {num_layers}: a layer-skip drafter of {target_folder} keeps 1 to "
            f"{target_layers - 1} of its {target_layers} layers"
        )
    tied = config.flag("tie_word_embeddings", default=False)
    tensors = _read_kept(target_folder, num_layers, tied=tied)
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CheckpointError(f"{out}: exists and is not an empty folder; name another one")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            # A folder made by mkdir follows the umask; the scratch folder is private.
            draft = Path(scratch) / "draft"
            draft.mkdir()
            save_file(tensors, draft / _WEIGHTS, metadata={"format": "pt"})
            text = json.dumps(_draft_config(config.values, num_layers), indent=2)
            (draft / "config.json").write_text(text + "\n", encoding="utf-8")
            # safetensors makes its files private; the server may run as somebody else.
            shutil.copymode(draft / "config.json", draft / _WEIGHTS)
            for name in _COPIED:
                if (target_folder / name).is_file():
                    shutil.copyfile(target_folder / name, draft / name)
            draft.rename(out)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out}: cannot be written ({error})") from error


def _draft_config(target: dict[str, Any], num_layers: int) -> dict[str, Any]:
    draft = {**target, "num_hidden_layers": num_layers}
    if isinstance(target.get("layer_types"), list):
        draft["layer_types"] = target["layer_types"][:num_layers]
    return draft


def _read_kept(target_folder: Path, num_layers: int, *, tied: bool) -> dict[str, Tensor]:
    """Tensors outside the layers, and those of the first `num_layers`, by name."""
    kept: dict[str, Tensor] = {}
    for path in _weight_files(target_folder):
        kept.update(_read_file(path, num_layers, tied=tied))
    parts = {match[2] for match in map(_LAYER.match, kept) if match} | {_IN_EVERY_LAYER}
    needed = {f"model.layers.{i}.{part}" for i in range(num_layers) for part in parts}
    needed |= {"model.embed_tokens.weight", "model.norm.weight"} | (set() if tied else {_HEAD})
    missing = sorted(needed - kept.keys())
    if missing:
        raise WeightsError(f"{target_folder}: tensor {missing[0]} is missing")
    return kept


def _weight_files(target_folder: Path) -> list[Path]:
    index = target_folder / _INDEX
    if not index.is_file():
        return [target_folder / _WEIGHTS]
    weight_map = read_json(index).child("weight_map")
    names = set() if weight_map is None else set(weight_map.values.values())
    for name in names:
        # A name with a folder in it could point anywhere on the machine.
        if not isinstance(name, str) or Path(name).name != name:
            raise WeightsError(f"{index}: weight_map names {name!r}, not a file of this folder")
    if not names:
        raise WeightsError(f"{index}: weight_map is missing or empty")
    return [target_folder / name for name in sorted(names)]


def _read_file(path: Path, num_layers: int, *, tied: bool) -> Iterator[tuple[str, Tensor]]:
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; only safetensors weights are read")
    if is_lfs_pointer(path):
        raise WeightsError(f"{path}: {LFS_POINTER_PROBLEM}")
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # the handle is not a mapping
                layer = _LAYER.match(name)
                skipped_layer = layer is not None and int(layer[1]) >= num_layers
                if not skipped_layer and not (tied and name == _HEAD):
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: not a usable safetensors file ({error})") from error

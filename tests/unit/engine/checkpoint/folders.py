"""Checkpoint folders for tests: the hostile cases, and edited copies of a healthy one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

CASES = Path(__file__).parents[3] / "data" / "checkpoints"
HEALTHY = CASES / "H25_template_in_own_file"
"""Llama layout, one weight file, bfloat16, untied."""
QWEN = CASES / "H16_qkv_bias"


def edited_copy(
    folder: Path,
    *,
    base: Path = HEALTHY,
    config: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Copy `base` to `folder` with keys of config.json set, and those of `without` removed."""
    shutil.copytree(base, folder)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | (config or {})
    path.write_text(json.dumps({key: values[key] for key in values if key not in without}))
    return folder


def edit_tensors(folder: Path, **changes: Tensor | None) -> None:
    """Set, or with None remove, tensors of the single weight file; `__` stands for a dot."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for key, tensor in changes.items():
        name = key.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path)

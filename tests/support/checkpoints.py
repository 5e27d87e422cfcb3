"""Tiny checkpoints on disk: those of the public bug reports, and changed copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CASES = Path(__file__).parents[1] / "data" / "checkpoints"
H0 = CASES / "H0_control_sharded"
A11 = CASES / "A11_same_size_other_vocab"

Weights = dict[str, Tensor]


def changed_copy(
    folder: Path,
    change: Callable[[Weights], Weights] = lambda weights: weights,
    *,
    source: Path = H0,
    **config: Any,
) -> Path:
    """A copy with other weights and configuration, in one unsharded file.

    Args:
        folder: Where to write it.
        change: Gives the new weights.
        source: What to copy.
        config: Keys of config.json to set.
    """
    folder.mkdir(parents=True)
    for path in source.iterdir():
        # Without its list of end tokens: it may not fit the new configuration.
        if not path.name.startswith(("model", "generation")):
            shutil.copy(path, folder)
    settings = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    weights: Weights = {}
    for shard in sorted(source.glob("*.safetensors")):
        weights |= load_file(shard)
    save_file(change(weights), folder / "model.safetensors")
    return folder


def overflowing(weights: Weights) -> Weights:
    """Weights whose products are infinite, so that the logits are NaN."""
    name = "model.layers.0.mlp.down_proj.weight"
    return weights | {name: torch.full_like(weights[name], 3e38)}


def disturbed(weights: Weights) -> Weights:
    """Weights that agree with the original now and then."""
    generator = torch.Generator().manual_seed(3)
    name = "model.embed_tokens.weight"
    noise = torch.randn(weights[name].shape, generator=generator)
    return weights | {name: (weights[name].float() + 0.3 * noise).to(weights[name].dtype)}


def resized(vocab_size: int) -> Callable[[Weights], Weights]:
    """Embedding and head with another number of rows; new rows are strong."""

    def change(weights: Weights) -> Weights:
        generator = torch.Generator().manual_seed(4)
        found = dict(weights)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            old = weights[name]
            new = 3 * torch.randn((vocab_size, old.shape[1]), generator=generator)
            rows = min(vocab_size, old.shape[0])
            new[:rows] = old[:rows].float()
            found[name] = new.to(old.dtype)
        return found

    return change

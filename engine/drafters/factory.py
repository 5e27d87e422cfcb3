"""From a description of a drafter to a drafter that fits the engine, or a clear refusal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.errors import CheckpointError, EngineError
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.tokenizer import Tokenizer, require_same_vocabulary

DraftMethod = Literal["ngram", "layer_skip", "draft_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """A drafter as a user names it.

    Attributes:
        name: Name in configurations and tables.
        method: How it drafts.
        min_n: Shortest n-gram (`ngram`).
        max_n: Longest n-gram (`ngram`).
        num_layers: Layers of the target to use (`layer_skip`).
        folder: Checkpoint (`draft_model`).
    """

    name: str
    method: DraftMethod
    min_n: int = 0
    max_n: int = 0
    num_layers: int = 0
    folder: Path | None = None

    def parameters(self) -> dict[str, str | int | float]:
        """What a serving layer must know to set up the same drafter."""
        if self.method == "ngram":
            return {"prompt_lookup_min": self.min_n, "prompt_lookup_max": self.max_n}
        if self.method == "layer_skip":
            return {"num_layers": self.num_layers}
        return {"model": str(self.folder)}


def ngram(min_n: int = 2, max_n: int = 4) -> DrafterSpec:
    """The n-gram drafter under its usual name."""
    return DrafterSpec(name="ngram", method="ngram", min_n=min_n, max_n=max_n)


def layer_skip(num_layers: int) -> DrafterSpec:
    """The target's first layers under their usual name."""
    return DrafterSpec(name=f"layer-skip-{num_layers}", method="layer_skip", num_layers=num_layers)


def build_drafter(
    spec: DrafterSpec, engine: Engine, target_folder: Path, *, budget_bytes: int | None = None
) -> Drafter:
    """Make a drafter for an engine's slots.

    Args:
        spec: What to make.
        engine: Whose target is drafted for.
        target_folder: The target's checkpoint, for comparing vocabularies.
        budget_bytes: Memory the drafter may take (weights and cache); None is no limit.

    Raises:
        EngineError: It does not fit the target, the slots or the budget; the message says why.
    """
    target, cache = engine.target, engine.cache
    if spec.method == "ngram":
        return NgramDrafter(spec.name, cache.num_slots, min_n=spec.min_n, max_n=spec.max_n)
    if spec.method == "layer_skip":
        if not 1 <= spec.num_layers < target.config.num_layers:
            raise EngineError(
                f"{spec.name} needs 1 to {target.config.num_layers - 1} layers, "
                f"got {spec.num_layers}"
            )
        return LayerSkipDrafter(spec.name, target, cache, spec.num_layers)
    if spec.folder is None:
        raise EngineError(f"{spec.name} is a draft model and needs a folder")
    return _build_draft_model(spec.name, spec.folder, engine, target_folder, budget_bytes)


def _build_draft_model(
    name: str, folder: Path, engine: Engine, target_folder: Path, budget_bytes: int | None
) -> ModelDrafter:
    target, slots, max_len = engine.target, engine.cache.num_slots, engine.max_len
    config = read_config(folder)
    if config.max_position_embeddings < max_len:
        raise CheckpointError(
            f"{folder}: the draft supports {config.max_position_embeddings} positions, the target "
            f"is served with {max_len}; lower the context length or take another draft"
        )
    require_same_vocabulary(Tokenizer(target_folder), Tokenizer(folder))
    num_weight_bytes = weight_bytes(config, target.dtype)
    needed = num_weight_bytes + slots * max_len * KvCache.bytes_per_token(config, target.dtype)
    if budget_bytes is not None and needed > budget_bytes:
        raise EngineError(
            f"needs {needed / 2**20:.1f} MiB for weights and cache, "
            f"has {budget_bytes / 2**20:.1f} MiB"
        )
    model = Transformer.from_weights(
        config,
        read_weights(folder, config),
        dtype=target.dtype,
        device=target.device,
        backend=target.backend,
        max_len=max_len,
    )
    return ModelDrafter(
        name,
        model,
        KvCache.allocate(config, slots, max_len, target.dtype, target.device),
        target_vocab_size=target.config.vocab_size,
        shared_vocab_size=min(config.vocab_size, target.config.vocab_size),
        num_weight_bytes=num_weight_bytes,
    )


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of a model's weights, the head counted even when tied (packed layers keep a copy)."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    per_layer = config.hidden_size * (
        heads + config.num_heads * config.head_dim + 3 * config.intermediate_size
    )
    num_parameters = config.num_layers * per_layer + 2 * config.vocab_size * config.hidden_size
    return num_parameters * dtype.itemsize

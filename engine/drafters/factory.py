"""From a description of a drafter to a drafter that fits the engine, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.eagle3_config import is_eagle3, read_eagle3_config
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD, read_weights
from engine.drafters.base import Drafter
from engine.drafters.eagle3.checkpoint import read_head
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.errors import CheckpointError, EngineError, WeightsError
from engine.kernels.linear import pack_linears
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.tokenizer import Tokenizer, require_same_vocabulary

DraftMethod = Literal["ngram", "layer_skip", "draft_model", "eagle3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """A drafter as a user names it.

    Attributes:
        name: Name in configurations and tables.
        method: How it drafts.
        min_n: Shortest n-gram (`ngram`).
        max_n: Longest n-gram (`ngram`).
        num_layers: Layers of the target to use (`layer_skip`).
        folder: Checkpoint (`draft_model`, `eagle3`).
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


def from_folder(name: str, folder: Path) -> DrafterSpec:
    """A drafter that lies in a folder, its method read from the checkpoint.

    Raises:
        CheckpointError: There is no readable `config.json`.
    """
    method: DraftMethod = "eagle3" if is_eagle3(folder) else "draft_model"
    return DrafterSpec(name=name, method=method, folder=folder)


def wanted_features(specs: Iterable[DrafterSpec], num_layers: int) -> tuple[int, ...]:
    """The target's states that must be recorded for some drafters, ascending.

    A folder that cannot be read, or asks for layers that the target does not have, wants nothing;
    building its drafter will say why.
    """
    layers: set[int] = set()
    for spec in specs:
        if spec.method == "eagle3" and spec.folder is not None:
            with suppress(CheckpointError):
                wanted = read_eagle3_config(spec.folder).feature_layers
                layers |= set(wanted) if wanted[-1] < num_layers else set()
    return tuple(sorted(layers))


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
        raise EngineError(f"{spec.name} is a checkpoint and needs a folder")
    if spec.method == "eagle3":
        return _build_eagle3(spec.name, spec.folder, engine, budget_bytes)
    return _build_draft_model(spec.name, spec.folder, engine, target_folder, budget_bytes)


def _build_eagle3(
    name: str, folder: Path, engine: Engine, budget_bytes: int | None
) -> Eagle3Drafter:
    target, slots, max_len = engine.target, engine.cache.num_slots, engine.max_len
    config = read_eagle3_config(folder)
    decoder = config.decoder
    for key, own, theirs in (
        ("vocab_size", decoder.vocab_size, target.config.vocab_size),
        ("target_hidden_size", config.target_hidden_size, target.config.hidden_size),
    ):
        if own != theirs:
            raise EngineError(f"{folder}: {key} = {own}, the target's is {theirs}")
    if max(config.feature_layers) >= target.config.num_layers:
        raise EngineError(
            f"{folder}: reads the input of layer {max(config.feature_layers)}, the target has "
            f"{target.config.num_layers} layers"
        )
    _check_positions(folder, decoder, max_len)
    head, embedding = read_head(folder, config)
    if embedding is None and decoder.hidden_size != target.config.hidden_size:
        raise WeightsError(
            f"{folder}: brings no embedding, and the target's is {target.config.hidden_size} wide "
            f"instead of {decoder.hidden_size}"
        )
    num_parameters = sum(p.numel() for p in head.parameters())
    num_parameters += 0 if embedding is None else embedding.numel()
    num_weight_bytes = num_parameters * target.dtype.itemsize
    per_token = KvCache.bytes_per_token(decoder, target.dtype)
    per_token += 3 * config.target_hidden_size * target.dtype.itemsize
    _check_memory(num_weight_bytes + slots * max_len * per_token, budget_bytes)
    head = head.to(device=target.device, dtype=target.dtype)
    pack_linears(head, target.backend)
    if embedding is not None:
        embedding = embedding.to(device=target.device, dtype=target.dtype)
    return Eagle3Drafter(
        name,
        head,
        target.embedding if embedding is None else embedding,
        KvCache.allocate(decoder, slots, max_len, target.dtype, target.device),
        backend=target.backend,
        num_weight_bytes=num_weight_bytes,
    )


def _build_draft_model(
    name: str, folder: Path, engine: Engine, target_folder: Path, budget_bytes: int | None
) -> ModelDrafter:
    target, slots, max_len = engine.target, engine.cache.num_slots, engine.max_len
    config = read_config(folder)
    _check_positions(folder, config, max_len)
    num_weight_bytes = weight_bytes(config, target.dtype)
    per_token = KvCache.bytes_per_token(config, target.dtype)
    _check_memory(num_weight_bytes + slots * max_len * per_token, budget_bytes)
    lent = {EMBEDDING: target.embedding}
    if not target.config.tie_word_embeddings:
        # Stands for `target.head`, whose rows are packed: only its shape is looked at.
        lent[OUTPUT_HEAD] = torch.empty_like(target.embedding, device="meta")
    weights = read_weights(folder, config, lent)
    # A draft that brings no embedding is made of the target's layers: it shares the vocabulary.
    shares = weights[EMBEDDING] is target.embedding
    if not shares:
        require_same_vocabulary(Tokenizer(target_folder), Tokenizer(folder))
    if config.tie_word_embeddings:
        shares_head = shares and target.config.tie_word_embeddings
    else:
        shares_head = OUTPUT_HEAD in lent and weights[OUTPUT_HEAD] is lent[OUTPUT_HEAD]
    model = Transformer.from_weights(
        config,
        weights,
        head=target.head if shares_head else None,
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


def _check_positions(folder: Path, config: ModelConfig, max_len: int) -> None:
    if config.max_position_embeddings < max_len:
        raise CheckpointError(
            f"{folder}: the draft supports {config.max_position_embeddings} positions, the target "
            f"is served with {max_len}; lower the context length or take another draft"
        )


def _check_memory(needed_bytes: int, budget_bytes: int | None) -> None:
    if budget_bytes is not None and needed_bytes > budget_bytes:
        raise EngineError(
            f"needs {needed_bytes / 2**20:.1f} MiB for weights and cache, "
            f"has {budget_bytes / 2**20:.1f} MiB"
        )


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of a model's weights, the head counted even when tied (packed layers keep a copy)."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    per_layer = config.hidden_size * (
        heads + config.num_heads * config.head_dim + 3 * config.intermediate_size
    )
    num_parameters = config.num_layers * per_layer + 2 * config.vocab_size * config.hidden_size
    return num_parameters * dtype.itemsize

"""Drafters without their target: for answers that another engine gave and logged.

Such a log holds tokens and log-probabilities, no states and no keys of the target. So it takes a
drafter whose proposals follow from the tokens alone.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.checkpoint.config import CONFIG_NAME, read_config
from engine.checkpoint.files import read_json
from engine.checkpoint.model_folder import read_wanted
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD, brings, read_weights
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec, weight_bytes
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.errors import EngineError
from engine.kernels.backend import Backend
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.tokenizer import Tokenizer, require_same_vocabulary


def refusal(spec: DrafterSpec) -> str | None:
    """Why a drafter cannot be scored without its target; None where it can."""
    if spec.method == "eagle3":
        return "reads the target's hidden states, which a log does not hold"
    if spec.method == "layer_skip":
        return "is made of the target's own layers, which are not run here"
    return None


def longest_text(spec: DrafterSpec) -> int | None:
    """Tokens that a drafter can look back on; None is no limit.

    Raises:
        CheckpointError: Its folder cannot be read.
    """
    return None if spec.folder is None else read_config(spec.folder).max_position_embeddings


def build_alone(
    spec: DrafterSpec,
    *,
    target_folder: Path | None,
    min_vocab_size: int,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend,
) -> Drafter:
    """Make a drafter with one slot.

    Args:
        spec: What to make; one that `refusal` has nothing against.
        target_folder: The target's folder, of which the tokenizer is compared and, for a draft
            that brings no embedding or output head, these are read; None skips the comparison.
        min_vocab_size: One more than the highest token in use.
        max_len: Tokens of the longest text, at most what `longest_text` says.
        dtype: Compute type.
        device: Where it runs.
        backend: Kernels of the model.

    Raises:
        EngineError: It needs a target that is not named, or does not fit it.
    """
    if reason := refusal(spec):
        raise EngineError(f"drafter {spec.name} {reason}")
    if spec.folder is None:
        return NgramDrafter(spec.name, 1, min_n=spec.min_n, max_n=spec.max_n)
    config = read_config(spec.folder)
    borrows = not brings(spec.folder, EMBEDDING)
    if target_folder is None and borrows:
        raise EngineError(
            f"{spec.folder}: brings no embedding, it takes the target's; name the target"
        )
    if target_folder is None:
        vocab_size, lent = max(config.vocab_size, min_vocab_size), {}
    else:
        vocab_size = max(_vocab_size(target_folder), min_vocab_size)
        lent = read_wanted(target_folder, {EMBEDDING, OUTPUT_HEAD}.__contains__) if borrows else {}
        if not borrows:
            require_same_vocabulary(Tokenizer(target_folder), Tokenizer(spec.folder))
    weights = read_weights(spec.folder, config, lent)
    model = Transformer.from_weights(
        config, weights, dtype=dtype, device=device, backend=backend, max_len=max_len
    )
    return ModelDrafter(
        spec.name,
        model,
        KvCache.allocate(config, 1, max_len, dtype, device),
        target_vocab_size=vocab_size,
        shared_vocab_size=min(config.vocab_size, vocab_size),
        num_weight_bytes=weight_bytes(config, dtype),
    )


def _vocab_size(folder: Path) -> int:
    """Rows of the target's embedding, or its tokens where the configuration tells none."""
    path = folder / CONFIG_NAME
    rows = read_json(path).values.get("vocab_size") if path.is_file() else None
    return rows if isinstance(rows, int) else Tokenizer(folder).vocab_size

"""Our engine as a search loads it, without the search."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.engine import Engine
from engine.model import Transformer


def load_engine(folder: Path, *, dtype: str, slots: int, max_len: int) -> Engine:
    """An engine on the CPU with the target loaded.

    Args:
        folder: The target's checkpoint.
        dtype: "float32" or "bfloat16".
        slots: Requests at a time.
        max_len: Tokens a slot holds.
    """
    config = read_config(folder)
    model = Transformer.from_weights(
        config, read_weights(folder, config), dtype=getattr(torch, dtype), max_len=max_len
    )
    return Engine(model, eos_token_ids=config.eos_token_ids, max_batch_size=slots, max_len=max_len)

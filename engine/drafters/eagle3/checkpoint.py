"""Reading an EAGLE-3 head from its folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.checkpoint.safetensors_reader import read_tensors
from engine.drafters.eagle3.head import Eagle3Head
from engine.errors import UnsupportedModelError, WeightsError

EMBEDDING = "embed_tokens.weight"
_MAPS = ("d2t", "t2d")


def read_head(folder: Path, config: Eagle3Config) -> tuple[Eagle3Head, Tensor | None]:
    """Read a head and, where it brings one, its embedding.

    Args:
        folder: Holds `model.safetensors`, or shards and their index.
        config: The configuration of the same folder.

    Returns:
        The head in float32, and its own embedding [vocab, hidden] or None to take the target's.

    Raises:
        WeightsError: A tensor is missing, damaged or of the wrong shape, or the vocabulary maps
            contradict each other.
        UnsupportedModelError: There is a tensor that the head has no use for, or its dtype.
    """
    with torch.device("meta"):
        head = Eagle3Head(config)
    vocab_size, whole = config.decoder.vocab_size, config.draft_vocab_size
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    expected[EMBEDDING] = (vocab_size, config.decoder.hidden_size)
    # A head that drafts the target's whole vocabulary needs no maps.
    optional = (EMBEDDING, *_MAPS) if whole == vocab_size else (EMBEDDING,)
    tensors = read_tensors(folder, expected, optional)
    for name, tensor in tensors.items():
        if name not in _MAPS and not tensor.is_floating_point():
            raise UnsupportedModelError(f"{folder}: tensor {name} has dtype {tensor.dtype}")
    embedding = tensors.pop(EMBEDDING, None)
    d2t = tensors.setdefault("d2t", torch.zeros(whole, dtype=torch.int64))
    t2d = tensors.setdefault("t2d", torch.ones(vocab_size, dtype=torch.bool))
    _check_maps(folder, d2t, t2d)
    state = {name: t if name in _MAPS else t.float() for name, t in tensors.items()}
    head.load_state_dict(state, assign=True)
    return head.requires_grad_(False), embedding


def _check_maps(folder: Path, d2t: Tensor, t2d: Tensor) -> None:
    """A wrong map drafts other tokens than were learnt, without any error: check all of it."""
    if d2t.dtype != torch.int64 or t2d.dtype != torch.bool:
        raise WeightsError(
            f"{folder}: d2t must be int64 and t2d bool, they are {d2t.dtype} and {t2d.dtype}"
        )
    ids = torch.arange(d2t.shape[0]) + d2t
    if bool((ids < 0).any()) or bool((ids >= t2d.shape[0]).any()):
        raise WeightsError(f"{folder}: d2t leads outside the {t2d.shape[0]} ids of the target")
    if bool((ids[1:] <= ids[:-1]).any()):
        raise WeightsError(
            f"{folder}: d2t gives one target id twice or out of order (it holds offsets, "
            "target id minus draft id)"
        )
    if not torch.equal(t2d.nonzero().squeeze(1), ids):
        raise WeightsError(f"{folder}: t2d marks other ids than d2t leads to")

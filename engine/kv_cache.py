"""Per-slot key/value memory.

Each slot holds one request; every row may have its own length, so a rejection only moves that
row's length back and the next round overwrites what lies beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine import large_pages
from engine.checkpoint.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """Keys and values of one sequence, detached from its slot.

    Attributes:
        keys: [num_layers, num_kv_heads, num_tokens, head_dim].
        values: Same shape.
    """

    keys: Tensor
    values: Tensor

    @property
    def num_tokens(self) -> int:
        """Positions held."""
        return self.keys.shape[2]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return 2 * self.keys.numel() * self.keys.element_size()


class KvCache:
    """Keys and values for `num_slots` sequences of at most `max_len` tokens.

    `lengths[slot]` counts the committed tokens; only the owner of the cache changes it.
    """

    def __init__(self, keys: Tensor, values: Tensor, lengths: list[int]) -> None:
        """Wrap existing tensors [num_layers, num_slots, num_kv_heads, max_len, head_dim]."""
        self.keys = keys
        self.values = values
        self.lengths = lengths

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        num_slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvCache:
        """Zeroed memory: unwritten positions are masked, but must never be NaN."""
        shape = (config.num_layers, num_slots, config.num_kv_heads, max_len, config.head_dim)
        if device.type == "cpu":
            keys, values = large_pages.zeros(shape, dtype), large_pages.zeros(shape, dtype)
        else:
            keys = torch.zeros(shape, dtype=dtype, device=device)
            values = torch.zeros_like(keys)
        return cls(keys, values, [0] * num_slots)

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes one token takes over all layers."""
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize

    @property
    def num_slots(self) -> int:
        """Sequences that fit."""
        return self.keys.shape[1]

    @property
    def max_len(self) -> int:
        """Tokens a sequence may have."""
        return self.keys.shape[3]

    def first_layers(self, num_layers: int) -> KvCache:
        """A view of the first layers that shares memory and lengths."""
        return KvCache(self.keys[:num_layers], self.values[:num_layers], self.lengths)

    def snapshot(self, slot: int) -> KvSnapshot:
        """Copy out the committed part of a slot."""
        length = self.lengths[slot]
        return KvSnapshot(
            self.keys[:, slot, :, :length].clone(), self.values[:, slot, :, :length].clone()
        )

    def restore(self, slot: int, snapshot: KvSnapshot, length: int) -> None:
        """Fill a slot with the first `length` tokens of a snapshot.

        Raises:
            ValueError: The snapshot is shorter, or longer than a slot.
        """
        if not 0 <= length <= min(snapshot.num_tokens, self.max_len):
            raise ValueError(
                f"length = {length}: the snapshot has {snapshot.num_tokens} tokens "
                f"and a slot holds {self.max_len}"
            )
        self.keys[:, slot, :, :length] = snapshot.keys[:, :, :length]
        self.values[:, slot, :, :length] = snapshot.values[:, :, :length]
        self.lengths[slot] = length

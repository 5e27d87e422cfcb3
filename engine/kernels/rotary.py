"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines of every position.

    Attributes:
        cos: [max_len, head_dim / 2].
        sin: Same shape.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> RotaryTables:
        """Tables of `max_len` positions, computed in float64."""
        angles = torch.outer(
            torch.arange(max_len, dtype=torch.float64), inverse_frequencies(config).double()
        )
        return cls(angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device))

    def at(self, positions: Tensor) -> RotaryTables:
        """The rows of some positions, shaped to broadcast over heads: [..., 1, head_dim / 2]."""
        return RotaryTables(self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2))


def rotate(x: Tensor, rotary: RotaryTables) -> Tensor:
    """Rotate in the half-split layout (Hugging Face's order).

    Args:
        x: [..., heads, head_dim].
        rotary: [..., 1, head_dim / 2].
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotary.cos, rotary.sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

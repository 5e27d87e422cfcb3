"""Attention over cached keys and values, with rotary positions, for targets and draft heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.rope import inverse_frequencies
from engine.layout import StepLayout


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


@dataclass(frozen=True, slots=True)
class AttentionPass:
    """What all layers of one forward pass share.

    Attributes:
        layout: Where each token belongs.
        rotary: Rows of the tokens' positions.
        mask: [B, 1, Q * group, L]. In grouped-query attention the queries of a group ride as
            extra rows of their key/value head.
    """

    layout: StepLayout
    rotary: RotaryTables
    mask: Tensor

    @classmethod
    def prepare(
        cls, config: ModelConfig, layout: StepLayout, tables: RotaryTables
    ) -> AttentionPass:
        """Look up positions and widen the mask, once per pass."""
        group = config.num_heads // config.num_kv_heads
        mask = layout.mask.repeat_interleave(group, dim=2) if group > 1 else layout.mask
        return cls(layout, tables.at(layout.positions), mask)


def attend(
    config: ModelConfig, qkv: Tensor, shared: AttentionPass, keys: Tensor, values: Tensor
) -> Tensor:
    """Causal attention of the new tokens over their rows' contexts.

    Args:
        config: Gives the heads.
        qkv: [T, (num_heads + 2 num_kv_heads) * head_dim].
        shared: Layout, positions and mask of this pass.
        keys: [num_slots, num_kv_heads, max_len, head_dim]; written.
        values: Same shape; written.

    Returns:
        [T, num_heads * head_dim].
    """
    layout = shared.layout
    num_kv, head_dim = config.num_kv_heads, config.head_dim
    group = config.num_heads // num_kv
    num_tokens = qkv.shape[0]
    heads = qkv.view(num_tokens, config.num_heads + 2 * num_kv, head_dim)
    rotated = rotate(heads[:, : config.num_heads + num_kv], shared.rotary)
    query = rotated[:, : config.num_heads]
    keys[layout.token_slots, :, layout.positions] = rotated[:, config.num_heads :]
    values[layout.token_slots, :, layout.positions] = heads[:, config.num_heads + num_kv :]
    if layout.pad_index is not None:
        query = query[layout.pad_index]
    batch, q_len = layout.batch_size, layout.max_q_len
    query = query.view(batch, q_len, num_kv, group, head_dim).transpose(1, 2)
    out = functional.scaled_dot_product_attention(
        query.reshape(batch, num_kv, q_len * group, head_dim),
        keys[layout.row_slots, :, : layout.kv_len],
        values[layout.row_slots, :, : layout.kv_len],
        attn_mask=shared.mask,
    )
    out = out.view(batch, num_kv, q_len, group, head_dim).transpose(1, 2)
    out = out.reshape(batch * q_len, config.num_heads * head_dim)
    return out if layout.unpad_index is None else out[layout.unpad_index]


def rotate(x: Tensor, rotary: RotaryTables) -> Tensor:
    """Rotary embedding in the half-split layout (Su et al. 2021; Hugging Face's order).

    Args:
        x: [..., heads, head_dim].
        rotary: [..., 1, head_dim / 2].
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotary.cos, rotary.sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

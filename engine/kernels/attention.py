"""Attention over cached keys and values, with rotary positions, for targets and draft heads."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.checkpoint.config import ModelConfig
from engine.kernels.backend import Backend
from engine.kernels.native.attention import NativeAttention, suits
from engine.kernels.rotary import RotaryTables, rotate
from engine.kv_cache import KvCache
from engine.layout import StepLayout, pad


class Attention(Protocol):
    """Causal attention of one pass's tokens over their rows' contexts, layer by layer."""

    def __call__(self, qkv: Tensor, layer: int) -> Tensor:
        """Write the tokens' keys and values into the cache and attend.

        Args:
            qkv: [T, (num_heads + 2 num_kv_heads) * head_dim].
            layer: Layer of the cache.

        Returns:
            [T, num_heads * head_dim].
        """
        ...


def prepare_attention(
    config: ModelConfig,
    layout: StepLayout,
    tables: RotaryTables,
    cache: KvCache,
    backend: Backend,
) -> Attention:
    """What all layers of one forward pass share, computed once.

    Args:
        config: Gives the heads.
        layout: Where each token belongs.
        tables: Cosines and sines of all positions.
        cache: Read, and written at the tokens' positions.
        backend: As resolved by `resolve_backend`.
    """
    if backend == "native" and suits(config):
        return NativeAttention(config, layout, tables, cache)
    return TorchAttention(config, layout, tables, cache)


class TorchAttention:
    """The reference: rows are padded to one length and masked."""

    def __init__(
        self, config: ModelConfig, layout: StepLayout, tables: RotaryTables, cache: KvCache
    ) -> None:
        """Look up positions and make the mask; arguments as in `prepare_attention`."""
        group = config.num_heads // config.num_kv_heads
        self._config = config
        self._layout = layout
        self._cache = cache
        self._rotary = tables.at(layout.positions)
        self._padded = pad(layout, cache.keys.dtype)
        # The queries of a group ride as extra rows of their key/value head.
        mask = self._padded.mask
        self._mask = mask.repeat_interleave(group, dim=2) if group > 1 else mask

    def __call__(self, qkv: Tensor, layer: int) -> Tensor:
        """See `Attention`."""
        config, layout, padded = self._config, self._layout, self._padded
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        num_kv, head_dim = config.num_kv_heads, config.head_dim
        group = config.num_heads // num_kv
        num_tokens = qkv.shape[0]
        heads = qkv.view(num_tokens, config.num_heads + 2 * num_kv, head_dim)
        rotated = rotate(heads[:, : config.num_heads + num_kv], self._rotary)
        query = rotated[:, : config.num_heads]
        keys[layout.token_slots, :, layout.positions] = rotated[:, config.num_heads :]
        values[layout.token_slots, :, layout.positions] = heads[:, config.num_heads + num_kv :]
        if padded.pad_index is not None:
            query = query[padded.pad_index]
        batch, q_len = layout.batch_size, layout.max_q_len
        query = query.view(batch, q_len, num_kv, group, head_dim).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            query.reshape(batch, num_kv, q_len * group, head_dim),
            keys[padded.row_slots, :, : layout.kv_len],
            values[padded.row_slots, :, : layout.kv_len],
            attn_mask=self._mask,
        )
        out = out.view(batch, num_kv, q_len, group, head_dim).transpose(1, 2)
        out = out.reshape(batch * q_len, config.num_heads * head_dim)
        return out if padded.unpad_index is None else out[padded.unpad_index]

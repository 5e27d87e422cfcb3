"""Attention by the native kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.kernels.native.bindings import AttentionStruct, loaded
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import StepLayout


class NativeAttention:
    """One forward pass over a ragged batch; `engine.kernels.attention` is the reference.

    Attributes:
        num_tokens: New tokens of the pass.
        struct: Pointer to the description that the library reads.
    """

    def __init__(
        self, config: ModelConfig, layout: StepLayout, tables: RotaryTables, cache: KvCache
    ) -> None:
        """Describe the pass once for all layers.

        Args:
            config: Gives the heads; the head dimension must suit the library's vectors.
            layout: Where each token belongs.
            tables: Cosines and sines of all positions.
            cache: Float32, on the CPU.
        """
        self._library = loaded()
        self._width = config.num_heads * config.head_dim
        self.num_tokens = layout.positions.shape[0]
        self._kept = (layout, tables, cache)  # the structure points into them
        self.struct = ctypes.pointer(
            AttentionStruct(
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                layer_stride=cache.keys.stride(0),
                slot_stride=cache.keys.stride(1),
                head_stride=cache.keys.stride(2),
                num_rows=layout.batch_size,
                row_ends=layout.row_ends.data_ptr(),
                positions=layout.positions.data_ptr(),
                slots=layout.token_slots.data_ptr(),
                cos=tables.cos.data_ptr(),
                sin=tables.sin.data_ptr(),
                keys=cache.keys.data_ptr(),
                values=cache.values.data_ptr(),
            )
        )

    def __call__(self, qkv: Tensor, layer: int) -> Tensor:
        """See `engine.kernels.attention.Attention`."""
        if qkv.dtype != torch.float32 or qkv.shape[0] != self.num_tokens:
            raise ValueError(f"qkv is {qkv.dtype} {tuple(qkv.shape)}, not float32 of this pass")
        qkv = qkv.contiguous()
        out = torch.empty(qkv.shape[0], self._width, dtype=torch.float32)
        self._library.attend(self.struct, qkv.data_ptr(), layer, out.data_ptr())
        return out


def suits(config: ModelConfig) -> bool:
    """Whether the kernel computes heads of this size."""
    return config.head_dim % loaded().lanes == 0

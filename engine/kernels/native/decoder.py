"""Whole decoder layers by the native kernels, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.native.attention import NativeAttention
from engine.kernels.native.bindings import DecoderLayerStruct, loaded
from engine.kernels.native.linear import NativeLinear

Products = tuple[NativeLinear, NativeLinear, NativeLinear, NativeLinear]
"""Of one layer: queries, keys and values; the attention's output; gate and up; down."""


class NativeDecoder:
    """All layers of a model; `engine.kernels.decoder` is the reference."""

    def __init__(self, layers: Sequence[Products]) -> None:
        """Describe the layers; nothing is copied."""
        self._library = loaded()
        self._kept = tuple(layers)  # the structures point into them
        self._width = layers[0][0].num_in
        self._structs = (DecoderLayerStruct * len(layers))(
            *(DecoderLayerStruct(*(product.struct for product in layer)) for layer in layers)
        )

    def __call__(self, hidden: Tensor, attend: NativeAttention, first: int, end: int) -> Tensor:
        """See `engine.kernels.decoder.run_layers`."""
        shape = (attend.num_tokens, self._width)
        if hidden.dtype != torch.float32 or hidden.shape != shape:
            raise ValueError(f"hidden is {hidden.dtype} {tuple(hidden.shape)}, not float32 {shape}")
        out = hidden.clone(memory_format=torch.contiguous_format)
        self._library.decode(self._structs, first, end, attend.struct, out.data_ptr())
        return out

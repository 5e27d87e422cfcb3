"""Decoder layers, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.attention import Attention
from engine.kernels.linear import Linear
from engine.kernels.native.attention import NativeAttention
from engine.kernels.native.decoder import NativeDecoder, Products
from engine.kernels.native.linear import NativeLinear


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The four products of one layer.

    Attributes:
        qkv: Norm, then queries, keys and values in one product.
        attention_out: Output of the attention, added to the residual stream.
        gate_up: Norm, then gate and up in one product, then SwiGLU.
        down: Output of the MLP, added to the residual stream.
    """

    qkv: Linear
    attention_out: Linear
    gate_up: Linear
    down: Linear


class Decoder:
    """All layers of a model. Source: Touvron et al. 2023 (Llama)."""

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        """Take the layers in order."""
        self.layers = tuple(layers)
        native = [products for layer in layers if (products := _native_products(layer))]
        self._native = NativeDecoder(native) if len(native) == len(layers) > 0 else None

    def __call__(self, hidden: Tensor, attend: Attention, first: int, end: int) -> Tensor:
        """Run some layers.

        Args:
            hidden: [T, hidden], input of layer `first`. Not modified.
            attend: Of this pass; writes into the cache.
            first: First layer to run.
            end: The layer after the last one.

        Returns:
            [T, hidden], input of layer `end`.
        """
        if self._native is not None and isinstance(attend, NativeAttention):
            return self._native(hidden, attend, first, end)
        for index, layer in enumerate(self.layers[first:end], start=first):
            hidden = layer.attention_out(attend(layer.qkv(hidden), index), hidden)
            hidden = layer.down(layer.gate_up(hidden), hidden)
        return hidden


def _native_products(layer: DecoderLayer) -> Products | None:
    qkv, attention_out = layer.qkv, layer.attention_out
    gate_up, down = layer.gate_up, layer.down
    if (
        isinstance(qkv, NativeLinear)
        and isinstance(attention_out, NativeLinear)
        and isinstance(gate_up, NativeLinear)
        and isinstance(down, NativeLinear)
    ):
        return qkv, attention_out, gate_up, down
    return None

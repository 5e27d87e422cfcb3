"""Linear layers behind one seam, so that packing stays out of the model code.

oneDNN's prepacked weights are two to three times faster than `F.linear` for the one to sixteen
rows of a decode step on CPUs. They are reached through private torch operators, so anything
unexpected falls back to `F.linear`, which is also the reference in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

LinearBackend = Literal["torch", "onednn"]
Linear = Callable[[Tensor], Tensor]
"""[num_tokens, in] -> [num_tokens, out], same dtype."""

_ROWS_HINT = 16  # the layout oneDNN picks for 16 rows is near its best from 1 to 64


def resolve_backend(device: torch.device, dtype: torch.dtype) -> LinearBackend:
    """The backend `auto` means on this device: packed where the operators exist."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return "torch"
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "torch"
    if dtype not in (torch.float32, torch.bfloat16):
        return "torch"
    try:
        _packed(torch.zeros(8, 8, dtype=dtype))(torch.zeros(1, 8, dtype=dtype))
    except (AttributeError, RuntimeError):
        return "torch"
    return "onednn"


def make_linear(weight: Tensor, bias: Tensor | None, backend: LinearBackend) -> Linear:
    """Build y = x W^T + b.

    Args:
        weight: [out, in]. Not modified; the packed backend keeps its own copy.
        bias: [out] or None.
        backend: As resolved by `resolve_backend`.
    """
    if backend == "onednn":
        return _packed(weight, bias)
    return lambda x: functional.linear(x, weight, bias)


def _packed(weight: Tensor, bias: Tensor | None = None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise
    empty: list[float] = []

    def linear(x: Tensor) -> Tensor:
        out: Tensor = run(x, packed, bias, "none", empty, "")
        return out

    return linear


class PackedLinear(nn.Module):
    """A linear layer without bias behind the same seam, in the place of an `nn.Linear`."""

    def __init__(self, weight: Tensor, backend: LinearBackend) -> None:
        """Pack a weight [out, in]."""
        super().__init__()
        self._run = make_linear(weight, None, backend)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self._run(x)


def pack_linears(module: nn.Module, backend: LinearBackend) -> None:
    """Put packed layers in place of a module's linear layers, which have no biases."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child.weight.detach(), backend))
        else:
            pack_linears(child, backend)

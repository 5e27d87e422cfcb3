"""Linear layers with weights in oneDNN's own layout: the CPU path where nothing can be compiled.

They are two to three times faster than `F.linear` for the one to sixteen rows of a decode step.
The operators are private to torch, so anything unexpected means they are not there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ROWS_HINT = 16  # the layout oneDNN picks for 16 rows is near its best from 1 to 64


def packs(dtype: torch.dtype) -> bool:
    """Whether the operators work here for a type."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    try:
        pack(torch.zeros(8, 8, dtype=dtype), None)(torch.zeros(1, 8, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True


def pack(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """X [..., in] -> x W^T + b, from a packed copy of the weight [out, in]."""
    bias = None if bias is None else bias.contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise
    empty: list[float] = []

    def product(x: Tensor) -> Tensor:
        out: Tensor = run(x, packed, bias, "none", empty, "")
        return out

    return product

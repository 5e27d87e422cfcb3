"""A linear layer by the native kernels, with the norm before and the addition after it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from engine.kernels.native.bindings import LinearStruct, loaded
from engine.large_pages import Arena

_ARENA = Arena()  # of all models: a layer alone is smaller than a large page


class NativeLinear:
    """y = f(norm(x) W^T + b) + residual in one call; `engine.kernels.linear` is the reference.

    Outputs are equal to the bit for any number of rows. Weights that are bfloat16 numbers are
    kept as such, which halves what a step reads; all arithmetic is float32 either way.

    Attributes:
        num_in: Inputs.
        num_out: Outputs.
        struct: Pointer to the description that the library reads.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        norm: Tensor | None,
        eps: float,
        *,
        is_gated: bool,
    ) -> None:
        """Pack the weight.

        Args:
            weight: [out, in] float32 on the CPU; gated, [2 out, in] with the gate's rows first.
            bias: [out] or None; not with a gate.
            norm: [in], weight of an RMSNorm over the input, or None.
            eps: Of the norm.
            is_gated: silu(gate) * up (Shazeer 2020).

        Raises:
            ValueError: A tensor is not float32 on the CPU.
        """
        for tensor in (weight, bias, norm):
            if tensor is not None and (
                tensor.dtype != torch.float32 or tensor.device.type != "cpu"
            ):
                raise ValueError(
                    f"weights are {tensor.dtype} on {tensor.device}, not float32 on cpu"
                )
        weight = weight.contiguous()
        num_rows, self.num_in = weight.shape
        self._library = loaded()
        self.num_out = num_rows // 2 if is_gated else num_rows
        self._bias = None if bias is None else bias.contiguous()
        self._norm = None if norm is None else norm.contiguous()
        struct = LinearStruct(
            bias=None if self._bias is None else self._bias.data_ptr(),
            norm=None if self._norm is None else self._norm.data_ptr(),
            num_in=self.num_in,
            num_out=self.num_out,
            is_bfloat16=torch.equal(weight.bfloat16().float(), weight),
            is_gated=is_gated,
            eps=eps,
        )
        self.struct = ctypes.pointer(struct)
        self._panels = _ARENA.take(self._library.packed_bytes(self.struct))
        struct.panels = self._panels.data_ptr()
        self._library.pack(self.struct, weight.data_ptr(), self._panels.data_ptr())

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., in] -> [..., out], float32.

        Raises:
            ValueError: x or the residual has another type or shape.
        """
        shape = (*x.shape[:-1], self.num_out)
        if x.dtype != torch.float32 or x.shape[-1] != self.num_in:
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}, not float32 [..., {self.num_in}]")
        x = x.contiguous()
        out = torch.empty(shape, dtype=torch.float32)
        if residual is not None:
            if residual.dtype != torch.float32 or residual.shape != shape:
                raise ValueError(
                    f"residual is {residual.dtype} {tuple(residual.shape)}, not float32 {shape}"
                )
            residual = residual.contiguous()
        self._library.multiply(
            self.struct,
            x.data_ptr(),
            out.numel() // self.num_out,
            None if residual is None else residual.data_ptr(),
            out.data_ptr(),
        )
        return out

"""Linear layers behind one seam, with what surrounds them: a norm before, an addition after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from engine.kernels.backend import Backend
from engine.kernels.native.linear import NativeLinear
from engine.kernels.packed import pack


class Linear(Protocol):
    """A linear layer and what is fused into it."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the layer.

        Args:
            x: [..., in].
            residual: [..., out], added to the result, or None.

        Returns:
            [..., out], same dtype.
        """
        ...


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).

    Attributes:
        weight: [size].
        eps: Added to the mean.
    """

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def make_linear(
    weight: Tensor,
    bias: Tensor | None,
    backend: Backend,
    *,
    norm: RmsNorm | None = None,
    is_gated: bool = False,
) -> Linear:
    """Build y = f(norm(x) W^T + b) + residual.

    Args:
        weight: [out, in]; gated, [2 out, in] with the gate's rows first. Not modified; packed
            backends keep a copy of their own.
        bias: [out] or None; not with a gate.
        backend: As resolved by `resolve_backend`.
        norm: Applied to the input, if any.
        is_gated: f(gate, up) = silu(gate) * up (Shazeer 2020), else f is the identity.
    """
    if backend == "native":
        scale, eps = (norm.weight, norm.eps) if norm else (None, 0.0)
        return NativeLinear(weight, bias, scale, eps, is_gated=is_gated)
    if backend == "onednn":
        return _Composed(pack(weight, bias), norm, is_gated)
    return _Composed(lambda x: functional.linear(x, weight, bias), norm, is_gated)


@dataclass(frozen=True, slots=True)
class _Composed:
    """One step after the other: the reference."""

    product: Callable[[Tensor], Tensor]
    norm: RmsNorm | None
    is_gated: bool

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self.product(x if self.norm is None else self.norm(x))
        if self.is_gated:
            gate, up = out.chunk(2, dim=-1)
            out = functional.silu(gate) * up
        return out if residual is None else residual + out


class PackedLinear(nn.Module):
    """A linear layer without bias behind the same seam, in the place of an `nn.Linear`."""

    def __init__(self, weight: Tensor, backend: Backend) -> None:
        """Pack a weight [out, in]."""
        super().__init__()
        self._run = make_linear(weight, None, backend)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self._run(x)


def pack_linears(module: nn.Module, backend: Backend) -> None:
    """Put packed layers in place of a module's linear layers, which have no biases."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child.weight.detach(), backend))
        else:
            pack_linears(child, backend)

"""Seeded linear layers and their results in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.backend import Backend
from engine.kernels.linear import Linear, RmsNorm, make_linear

EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A layer and its input.

    Attributes:
        x: [rows, in].
        weight: [out, in]; gated, [2 out, in].
        bias: [out] or None.
        norm: [in] or None.
        residual: [rows, out].
        is_gated: As in `make_linear`.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    norm: Tensor | None
    residual: Tensor
    is_gated: bool

    def layer(self, backend: Backend) -> Linear:
        """The layer by a backend."""
        norm = None if self.norm is None else RmsNorm(self.norm, EPS)
        return make_linear(self.weight, self.bias, backend, norm=norm, is_gated=self.is_gated)

    def expected(self) -> Tensor:
        """[rows, out] float64, without the residual."""
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        out = functional.linear(x, self.weight.double())
        if self.is_gated:
            gate, up = out.chunk(2, dim=-1)
            out = gate * torch.sigmoid(gate) * up
        return out if self.bias is None else out + self.bias.double()

    def tolerance(self) -> float:
        """Of outputs of a few units, from float32's rounding.

        Products have a standard deviation of 1 / sqrt(in), so partial sums are of order one. Each
        of the `in` additions rounds by at most 2^-24 of that and the errors add up like a random
        walk, so the result is off by about 2^-24 sqrt(in); the norm, the gate and the additions
        add a few units more. Eight times that is out of reach for rounding, and a hundredth of
        what rounding the inputs to bfloat16 would make.
        """
        return float(8 * 2**-24 * (self.x.shape[-1] ** 0.5 + 8))


class Options(TypedDict, total=False):
    """What `problem` may be asked for."""

    with_bias: bool
    with_norm: bool
    is_gated: bool
    is_bfloat16: bool


def problem(
    num_in: int,
    num_out: int,
    *,
    rows: int = 5,
    with_bias: bool = False,
    with_norm: bool = False,
    is_gated: bool = False,
    is_bfloat16: bool = False,
) -> Problem:
    """A layer whose outputs are of order one."""
    generator = torch.Generator().manual_seed(1000 * num_in + num_out)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    weight = normal(2 * num_out if is_gated else num_out, num_in) / num_in**0.5
    return Problem(
        x=normal(rows, num_in),
        weight=weight.bfloat16().float() if is_bfloat16 else weight,
        bias=normal(num_out) if with_bias else None,
        norm=1 + 0.3 * normal(num_in) if with_norm else None,
        residual=normal(rows, num_out),
        is_gated=is_gated,
    )

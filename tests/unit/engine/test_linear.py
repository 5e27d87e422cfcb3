"""The packed linear layers against the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.linear import make_linear, resolve_backend

CPU = torch.device("cpu")


def problem(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and bias of odd sizes."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, 37), (53, 37), (53,))
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 65])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_chosen_backend_computes_the_product(
    dtype: torch.dtype, tolerance: float, with_bias: bool, rows: int
) -> None:
    """Whatever `auto` picks on this machine equals the float64 product to rounding."""
    x, weight, bias = problem(rows, dtype)
    used = bias if with_bias else None
    before = weight.clone()

    out = make_linear(weight, used, resolve_backend(CPU, dtype))(x)

    expected = functional.linear(
        x.double(), weight.double(), None if used is None else used.double()
    )
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_types_without_packed_operators_use_torch(dtype: torch.dtype) -> None:
    """Only float32 and bfloat16 are packed."""
    assert resolve_backend(CPU, dtype) == "torch"


def test_devices_other_than_the_cpu_use_torch() -> None:
    """Packing is a CPU affair."""
    assert resolve_backend(torch.device("meta"), torch.float32) == "torch"


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_a_missing_operator_falls_back(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators are private to torch: when they are gone, the plain layer takes over."""

    def broken(*_: object) -> None:
        raise error("gone")

    monkeypatch.setattr("engine.linear._packed", broken)

    assert resolve_backend(CPU, torch.float32) == "torch"

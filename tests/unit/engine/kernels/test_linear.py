"""The packed linear layers against the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.kernels.linear import (
    LinearBackend,
    PackedLinear,
    make_linear,
    pack_linears,
    resolve_backend,
)

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


# ---------------------------------------------------------------- modules

BACKENDS: tuple[LinearBackend, ...] = ("torch", resolve_backend(CPU, torch.float32))


class Nested(nn.Module):
    """Linear layers at two depths among others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(37, 53, bias=False)
        self.norm = nn.RMSNorm(53)
        self.inner = nn.ModuleDict({"last": nn.Linear(53, 5, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        """[..., 37] -> [..., 5]."""
        out: Tensor = self.inner["last"](self.norm(self.first(x)))
        return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 37), (3, 37), (2, 7, 37), (1, 1, 37)])
def test_a_packed_layer_is_the_layer(shape: tuple[int, ...], backend: LinearBackend) -> None:
    """Any leading dimensions, and nothing left to train."""
    torch.manual_seed(1)
    layer, x = nn.Linear(37, 53, bias=False), torch.randn(shape)

    packed = PackedLinear(layer.weight.detach(), backend)

    torch.testing.assert_close(packed(x), layer(x).detach(), rtol=0, atol=1e-5)
    assert list(packed.parameters()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_packing_a_module_changes_no_output(backend: LinearBackend) -> None:
    """Layers at any depth are replaced, what is no linear layer stays."""
    torch.manual_seed(2)
    module, x = Nested(), torch.randn(4, 37)
    with torch.no_grad():
        wanted = module(x)
        norm = module.norm

        pack_linears(module, backend)

        torch.testing.assert_close(module(x), wanted, rtol=0, atol=1e-5)
    assert not any(isinstance(part, nn.Linear) for part in module.modules())
    assert sum(isinstance(part, PackedLinear) for part in module.modules()) == 2
    assert module.norm is norm


def test_packed_layers_compute_in_inference_mode() -> None:
    """As drafters use them: without gradients, also when the weights were trained."""
    torch.manual_seed(3)
    module = Nested()
    pack_linears(module, resolve_backend(CPU, torch.float32))

    with torch.inference_mode():
        out = module(torch.randn(2, 37))

    assert out.shape == (2, 5)
    assert not out.requires_grad

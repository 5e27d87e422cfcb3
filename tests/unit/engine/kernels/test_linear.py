"""Linear layers of every backend against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine.kernels.backend import Backend, resolve_backend
from engine.kernels.linear import PackedLinear, make_linear, pack_linears
from engine.kernels.native.bindings import Library
from engine.kernels.packed import packs
from tests.unit.engine.kernels.linear_problems import Options, Problem, problem

BACKENDS: tuple[Backend, ...] = (
    "torch",
    *(("onednn",) if packs(torch.float32) else ()),
    "native",
)

FUSIONS: dict[str, Options] = {
    "plain": {},
    "bias": {"with_bias": True},
    "norm": {"with_norm": True},
    "norm and bias": {"with_norm": True, "with_bias": True},
    "gate": {"is_gated": True},
    "norm and gate": {"with_norm": True, "is_gated": True},
    "bfloat16": {"is_bfloat16": True},
    "bfloat16, norm and bias": {"is_bfloat16": True, "with_norm": True, "with_bias": True},
    "bfloat16, norm and gate": {"is_bfloat16": True, "with_norm": True, "is_gated": True},
}


def check(case: Problem, backend: Backend) -> None:
    """Compare a layer with float64, with and without a residual."""
    layer, expected = case.layer(backend), case.expected()
    out, added = layer(case.x), layer(case.x, case.residual)

    limit = case.tolerance()
    torch.testing.assert_close(out.double(), expected, rtol=limit, atol=limit)
    expected += case.residual.double()
    torch.testing.assert_close(added.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("num_out", [1, 8, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("num_in", [1, 7, 37, 576, 1537, 3100])
@pytest.mark.parametrize("backend", ["torch", "onednn"])
def test_composed_layers_compute_what_they_say(backend: Backend, num_in: int, num_out: int) -> None:
    """The reference and the packed operators equal float64 to rounding, whatever is fused."""
    if backend not in BACKENDS:
        pytest.skip("no packed operators in this build of torch")
    for fusion in FUSIONS.values():
        check(problem(num_in, num_out, **fusion), backend)


@pytest.mark.parametrize("num_out", [1, 8, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("num_in", [1, 7, 37, 576, 1537, 3100])
@pytest.mark.usefixtures("native")
def test_native_layers_compute_what_they_say(num_in: int, num_out: int) -> None:
    """So do the native kernels, at every vector width and in both storages."""
    for fusion in FUSIONS.values():
        check(problem(num_in, num_out, **fusion), "native")


@pytest.mark.parametrize("rows", [*range(1, 14), 65, 126, 127, 300])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_rows(backend: Backend, rows: int) -> None:
    """From a decode step of one sequence to a chunk of a prompt."""
    check(problem(37, 53, rows=rows, with_norm=True, with_bias=True), backend)
    check(problem(37, 53, rows=rows, with_norm=True, is_gated=True), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(37,), (1, 37), (2, 3, 37), (1, 1, 37), (2, 1, 2, 37)])
def test_any_leading_dimensions(shape: tuple[int, ...], backend: Backend) -> None:
    """They come out as they went in."""
    case = problem(37, 53)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    residual = torch.randn((*shape[:-1], 53), generator=torch.Generator().manual_seed(2))

    out = case.layer(backend)(x, residual)

    assert out.shape == residual.shape
    expected = x.double() @ case.weight.double().T + residual.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=case.tolerance() * 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 37), (0, 3, 37), (2, 0, 37)])
@pytest.mark.parametrize("fusion", ["plain", "norm and bias", "norm and gate"])
def test_no_rows_give_no_rows(fusion: str, shape: tuple[int, ...], backend: Backend) -> None:
    """An empty batch is a batch."""
    case = problem(37, 53, **FUSIONS[fusion])
    empty = torch.empty((*shape[:-1], 53))

    layer = case.layer(backend)

    assert layer(torch.empty(shape)).shape == empty.shape
    assert layer(torch.empty(shape), empty).shape == empty.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_need_not_be_contiguous(backend: Backend) -> None:
    """Neither the weights, nor the input, nor the residual."""
    case = problem(37, 53, with_bias=True, with_norm=True)
    assert case.bias is not None
    assert case.norm is not None
    strided = Problem(
        x=case.x.T.contiguous().T,
        weight=case.weight.T.contiguous().T,
        bias=torch.stack((case.bias, -case.bias), dim=1)[:, 0],
        norm=torch.stack((case.norm, -case.norm), dim=1)[:, 0],
        residual=case.residual.T.contiguous().T,
        is_gated=False,
    )
    for part in (strided.x, strided.weight, strided.bias, strided.norm, strided.residual):
        assert part is not None
        assert not part.is_contiguous()

    check(strided, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_nothing_that_is_given_is_changed(fusion: str, backend: Backend) -> None:
    """Weights, input and residual are read only."""
    case = problem(37, 53, **FUSIONS[fusion])
    given = [case.x, case.weight, case.residual]
    given += [part for part in (case.bias, case.norm) if part is not None]
    before = [part.clone() for part in given]

    out = case.layer(backend)(case.x, case.residual)

    assert all(torch.equal(part, copy) for part, copy in zip(given, before, strict=True))
    assert out.data_ptr() not in {part.data_ptr() for part in given}


@pytest.mark.parametrize("backend", ["onednn", "native"])
def test_packed_weights_are_copies(backend: Backend) -> None:
    """What happens to the weight afterwards reaches the layer no more."""
    if backend not in BACKENDS:
        pytest.skip("no packed operators in this build of torch")
    case = problem(37, 53)
    layer = case.layer(backend)
    before = layer(case.x)

    case.weight.zero_()

    assert torch.equal(layer(case.x), before)


@pytest.mark.usefixtures("native")
def test_results_are_float32_whatever_the_default_is() -> None:
    """Loading a model elsewhere may change torch's default type for a while."""
    case = problem(37, 53)
    layer = case.layer("native")
    expected = layer(case.x)
    torch.set_default_dtype(torch.float64)
    try:
        out = layer(case.x)
    finally:
        torch.set_default_dtype(torch.float32)

    assert out.dtype == torch.float32
    assert torch.equal(out, expected)


# ---------------------------------------------------------------- modules


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
def test_a_packed_layer_is_the_layer(shape: tuple[int, ...], backend: Backend) -> None:
    """Any leading dimensions, and nothing left to train."""
    torch.manual_seed(1)
    layer, x = nn.Linear(37, 53, bias=False), torch.randn(shape)

    packed = PackedLinear(layer.weight.detach(), backend)

    torch.testing.assert_close(packed(x), layer(x).detach(), rtol=0, atol=1e-5)
    assert list(packed.parameters()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_packing_a_module_changes_no_output(backend: Backend) -> None:
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
    pack_linears(module, resolve_backend(torch.device("cpu"), torch.float32).backend)

    with torch.inference_mode():
        out = module(torch.randn(2, 37))

    assert out.shape == (2, 5)
    assert not out.requires_grad


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_the_chosen_backend_keeps_the_type(dtype: torch.dtype, tolerance: float) -> None:
    """Whatever is picked for a type on this machine computes in it."""
    case = problem(37, 53, with_bias=True)
    assert case.bias is not None
    backend = resolve_backend(torch.device("cpu"), dtype).backend

    out = make_linear(case.weight.to(dtype), case.bias.to(dtype), backend)(case.x.to(dtype))

    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=tolerance)


def test_what_the_native_kernels_cannot_read_is_refused(native: Library) -> None:
    """Other types or shapes would make them read foreign memory: an error, as torch gives."""
    case = problem(37, 53, with_bias=True)
    layer = case.layer("native")

    with pytest.raises((ValueError, RuntimeError, TypeError)):
        make_linear(case.weight.bfloat16(), None, "native")
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        layer(case.x.bfloat16())
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        layer(case.x[:, :30])
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        layer(case.x, case.residual[:1])

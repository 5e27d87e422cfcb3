"""What the native linear layers promise beyond being right: bits that depend on nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kernels.linear import RmsNorm, make_linear
from engine.kernels.native.bindings import Library
from tests.unit.engine.kernels.linear_problems import Options, problem

pytestmark = pytest.mark.usefixtures("native")

FUSIONS: dict[str, Options] = {
    "bias": {"with_bias": True},
    "norm and gate": {"with_norm": True, "is_gated": True},
    "bfloat16, norm and bias": {"is_bfloat16": True, "with_norm": True, "with_bias": True},
    "bfloat16 and gate": {"is_bfloat16": True, "is_gated": True},
}


@pytest.mark.parametrize("num_in", [37, 1537, 3100])
@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_a_row_does_not_depend_on_its_companions(fusion: str, num_in: int) -> None:
    """Equal to the bit for every number of rows, wherever the row stands among them."""
    case = problem(num_in, 33, rows=300, **FUSIONS[fusion])
    layer = case.layer("native")

    alone = torch.cat([layer(case.x[i : i + 1], case.residual[i : i + 1]) for i in range(300)])

    for rows in (*range(1, 14), 65, 126, 127, 300):
        for first in {0, 300 - rows}:
            part = slice(first, first + rows)
            assert torch.equal(layer(case.x[part], case.residual[part]), alone[part])


@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_results_do_not_depend_on_threads(fusion: str, threads: Callable[[int], None]) -> None:
    """Equal to the bit with one thread and with several, above and below what is shared out."""
    for rows, num_in in ((1, 37), (1, 1537), (7, 1537), (127, 576)):
        case = problem(num_in, 100, rows=rows, **FUSIONS[fusion])
        results = []
        for count in (1, 2, 3):
            threads(count)
            results.append(case.layer("native")(case.x, case.residual))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("num_in", [1, 37, 1537])
@pytest.mark.parametrize("num_out", [1, 16, 33])
@pytest.mark.parametrize("is_gated", [False, True])
def test_both_storages_give_the_same_bits(
    native: Library, is_gated: bool, num_out: int, num_in: int
) -> None:
    """bfloat16 numbers multiply as if they were kept as float32, but for the matrix unit's sums."""
    case = problem(num_in, num_out, rows=9, is_gated=is_gated, is_bfloat16=True)
    # One more output that is no bfloat16 number makes the whole layer float32; it comes last
    # among the gates, so that gated layers need one row of it in both halves.
    odd = torch.full((1, num_in), 1 + 2**-20)
    halves = case.weight.chunk(2) if is_gated else (case.weight,)
    wider = torch.cat([part for half in halves for part in (half, odd)])

    out = make_linear(wider, None, "native", is_gated=is_gated)(case.x)

    stored = case.layer("native")(case.x)
    if native.has_tiles:
        torch.testing.assert_close(out[:, :num_out], stored, rtol=0, atol=case.tolerance())
    else:
        assert torch.equal(out[:, :num_out], stored)


@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_all_bits_of_an_input_count(rows: int) -> None:
    """Times one, an input comes out as it went in: no part of its 24 bits is lost."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn((rows, 40), generator=generator) * 10 ** torch.linspace(-20, 20, 40)

    assert torch.equal(make_linear(torch.eye(40), None, "native")(x), x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_what_is_not_finite_stays_in_its_row(fusion: str, bad: float) -> None:
    """One sequence that overflows must not disturb another."""
    case = problem(37, 33, rows=7, **FUSIONS[fusion])
    layer = case.layer("native")
    before = layer(case.x, case.residual)
    x = case.x.clone()
    x[3, 5] = bad

    out = layer(x, case.residual)

    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(out[others], before[others])
    assert not out[3].isfinite().any()


@pytest.mark.parametrize("is_bfloat16", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_in_a_weight_stays_in_its_output(bad: float, is_bfloat16: bool) -> None:
    """The neighbours in the same panel are as without it."""
    case = problem(37, 33, is_bfloat16=is_bfloat16)
    if bad != bad:  # NaN equals nothing, not even its own bfloat16: kept as float32
        case.weight[20, 3] = 1 + 2**-20
    before = case.layer("native")(case.x)
    case.weight[20, 3] = bad

    out = case.layer("native")(case.x)

    others = [i for i in range(33) if i != 20]
    assert torch.equal(out[:, others], before[:, others])
    assert not out[:, 20].isfinite().any()


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-30, 1e30])
def test_extreme_inputs_are_scaled_results(scale: float) -> None:
    """Denormal and huge inputs are multiplied like any other."""
    case = problem(37, 33)
    x = (case.x.double() * scale).float()

    out = case.layer("native")(x)

    expected = x.double() @ case.weight.double().T
    # Below the smallest normal number, spacing is 2^-149.
    torch.testing.assert_close(
        out.double(), expected, rtol=1e-4, atol=scale * case.tolerance() + 37 * 2.0**-149
    )


def test_negative_zero_and_denormal_weights_are_kept(native: Library) -> None:
    """The storage is exact for every bfloat16 number; the matrix unit takes denormals for zero."""
    weight = torch.tensor([[-0.0, 2.0**-133, -(2.0**-130), 1.0]])
    x = torch.tensor([[1.0, 1.0, 1.0, 0.0]])

    out = make_linear(weight, None, "native")(x)

    assert out.item() == (0.0 if native.has_tiles else 2.0**-133 - 2.0**-130)


# ---------------------------------------------------------------- what surrounds the product


def silu(values: torch.Tensor) -> torch.Tensor:
    """SiLU of [N] numbers by the kernel."""
    layer = make_linear(torch.eye(2), None, "native", is_gated=True)
    return layer(torch.stack((values, torch.ones_like(values)), dim=1)).squeeze(1)


def test_the_gate_is_accurate() -> None:
    """Within a millionth of float64 where exp is a normal number, next to nothing below."""
    values = torch.linspace(-100, 100, 40_001)

    out = silu(values).double()

    exact = values.double() * torch.sigmoid(values.double())
    normal = values > -87
    torch.testing.assert_close(out[normal], exact[normal], rtol=1e-6, atol=0)
    assert (out[~normal].abs() < 2e-36).all()


@pytest.mark.parametrize("value", [-88.5, -1e2, -1e4, -1e20, -1e30, -3e38])
def test_a_closed_gate_is_shut(value: float) -> None:
    """However negative: silu tends to zero from below, and nothing may leak through."""
    assert silu(torch.tensor([value])).abs().item() < 2e-36


@pytest.mark.parametrize("value", [88.5, 1e2, 1e20, 3e38])
def test_an_open_gate_lets_through(value: float) -> None:
    """However positive: silu is the identity."""
    given = torch.tensor([value])

    torch.testing.assert_close(silu(given), given, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 3, 16, 37, 576, 3100])
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e3, 1e15])
def test_the_norm_is_accurate(scale: float, size: int) -> None:
    """Tiny inputs are ruled by eps, large ones by their own size."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn((4, size), generator=generator) * scale
    weight = 1 + 0.3 * torch.randn(size, generator=generator)
    layer = make_linear(torch.eye(size), None, "native", norm=RmsNorm(weight, 1e-5))

    out = layer(x)

    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(out.double(), exact * weight.double(), rtol=2e-6, atol=0)


def test_the_norm_overflows_as_the_reference_does() -> None:
    """Where the square of an input is beyond float32, both give the same."""
    x = torch.tensor([[1e30, -1.0, 0.0]])
    norm = RmsNorm(torch.ones(3), 1e-5)

    native, reference = (
        make_linear(torch.eye(3), None, backend, norm=norm)(x) for backend in ("native", "torch")
    )

    assert torch.equal(native, reference)

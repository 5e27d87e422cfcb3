"""Which kernels are chosen, and what is said where the fastest are missing."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineError
from engine.kernels.backend import Backend, Resolved, fastest_dtype, resolve_backend
from engine.kernels.native.bindings import Library
from engine.kernels.packed import packs

CPU = torch.device("cpu")


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing can be built."""
    monkeypatch.setattr("engine.kernels.backend.load", lambda: "no C++ compiler")


def pretend_packs(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    """Packed operators that are there for every type, or for none."""
    monkeypatch.setattr("engine.kernels.backend.packs", lambda _: answer)


@pytest.mark.usefixtures("native")
def test_float32_on_a_cpu_is_native() -> None:
    """Where the kernels can be built nothing needs to be said."""
    assert resolve_backend(CPU, torch.float32) == Resolved("native", None)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize(("can_pack", "backend"), [(True, "onednn"), (False, "torch")])
def test_without_a_library_the_reason_is_told(
    can_pack: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed operators come next, then plain torch; either way the user learns why."""
    pretend_packs(monkeypatch, can_pack)

    resolved = resolve_backend(CPU, torch.float32)

    assert (resolved.backend, resolved.note) == (backend, "no C++ compiler")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_never_ask_for_the_library(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels compute in float32 only, so none are built and no note is due."""

    def load() -> Library | str:
        pytest.fail("built for nothing")

    monkeypatch.setattr("engine.kernels.backend.load", load)

    resolved = resolve_backend(CPU, dtype)

    assert resolved.backend == ("onednn" if packs(dtype) else "torch")
    assert resolved.note is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices_use_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels and the packed operators are a CPU's affair."""

    def load() -> Library | str:
        pytest.fail("built for nothing")

    monkeypatch.setattr("engine.kernels.backend.load", load)
    pretend_packs(monkeypatch, True)

    for name in ("meta", "cuda"):
        assert resolve_backend(torch.device(name), dtype) == Resolved("torch", None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_can_always_be_had(dtype: torch.dtype) -> None:
    """The reference works everywhere."""
    for name in ("cpu", "cuda"):
        assert resolve_backend(torch.device(name), dtype, "torch") == Resolved("torch")


def test_what_was_asked_for_is_taken() -> None:
    """Also where `auto` would take another."""
    assert resolve_backend(CPU, torch.float32, "onednn") == Resolved("onednn")


@pytest.mark.parametrize(
    ("wanted", "device", "dtype", "reason"),
    [
        ("native", "cuda", torch.float32, "is for CPUs, not for cuda"),
        ("onednn", "cuda", torch.float32, "is for CPUs, not for cuda"),
        ("native", "cpu", torch.bfloat16, "computes in float32, not in torch.bfloat16"),
        ("native", "cpu", torch.float32, "no C.. compiler"),
        ("onednn", "cpu", torch.float64, "has no torch.float64 operators"),
    ],
)
@pytest.mark.usefixtures("no_library")
def test_what_does_not_work_is_refused_with_the_reason(
    wanted: Backend, device: str, dtype: torch.dtype, reason: str
) -> None:
    """A choice by name is never silently replaced."""
    with pytest.raises(EngineError, match=f"backend = {wanted}: .*{reason}"):
        resolve_backend(torch.device(device), dtype, wanted)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("multiplies", [True, False])
@pytest.mark.parametrize("wanted", ["auto", "native"])
def test_native_kernels_decide_for_float32(multiplies: bool, wanted: Backend) -> None:
    """Even where the processor multiplies bfloat16."""
    assert fastest_dtype(multiplies_bfloat16=multiplies, wanted=wanted) == torch.float32


@pytest.mark.usefixtures("no_library")
def test_bfloat16_comes_next_where_it_is_not_emulated() -> None:
    """Nothing can be built here."""
    assert fastest_dtype(multiplies_bfloat16=True) == torch.bfloat16
    assert fastest_dtype(multiplies_bfloat16=False) == torch.float32


@pytest.mark.parametrize("wanted", ["torch", "onednn"])
def test_other_backends_take_bfloat16_where_it_is_not_emulated(wanted: Backend) -> None:
    """The choice of kernels is obeyed."""
    assert fastest_dtype(multiplies_bfloat16=True, wanted=wanted) == torch.bfloat16

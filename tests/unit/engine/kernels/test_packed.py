"""The packed operators of torch: where they are, and where they are gone."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.packed import packs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8])
def test_other_types_are_not_packed(dtype: torch.dtype) -> None:
    """Only float32 and bfloat16 are."""
    assert not packs(dtype)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_a_missing_operator_is_noticed(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators are private to torch: they may go, or change what they take."""

    def broken(*_: object) -> None:
        raise error("gone")

    monkeypatch.setattr("engine.kernels.packed.pack", broken)

    assert not packs(torch.float32)


def test_a_build_without_onednn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of torch leave it out."""
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)

    assert not packs(torch.float32)


def test_a_processor_without_bfloat16_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the operators exist, but refuse."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)

    assert not packs(torch.bfloat16)

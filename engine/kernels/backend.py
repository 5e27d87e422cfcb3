"""Which implementation of the kernels a model uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engine.errors import EngineError
from engine.kernels.native.bindings import load
from engine.kernels.packed import packs

Backend = Literal["torch", "onednn", "native"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What `auto` means here.

    Attributes:
        backend: The fastest that works.
        note: Why a faster one does not, in one line, or None.
    """

    backend: Backend
    note: str | None = None


def resolve_backend(
    device: torch.device, dtype: torch.dtype, wanted: Backend | Literal["auto"] = "auto"
) -> Resolved:
    """The fastest backend for a device and a type of arithmetic, or the one that is wanted.

    Builds the native kernels when they are wanted for the first time.

    Raises:
        EngineError: What is wanted does not work here.
    """
    if wanted == "torch" or (wanted == "auto" and device.type != "cpu"):
        return Resolved("torch")
    if wanted == "auto":
        return _fastest(dtype)
    if device.type != "cpu":
        raise EngineError(f"backend = {wanted}: is for CPUs, not for {device.type}")
    if wanted == "onednn":
        if not packs(dtype):
            raise EngineError(f"backend = onednn: has no {dtype} operators here; use auto")
        return Resolved(wanted)
    if dtype != torch.float32:
        raise EngineError(f"backend = native: computes in float32, not in {dtype}; use auto")
    library = load()
    if isinstance(library, str):
        raise EngineError(f"backend = native: {library}")
    return Resolved(wanted)


def fastest_dtype(
    *, multiplies_bfloat16: bool, wanted: Backend | Literal["auto"] = "auto"
) -> torch.dtype:
    """The type of arithmetic that is fastest on this CPU.

    float32 by the native kernels, which also keeps greedy answers equal for every batch size;
    without them bfloat16, but only where the processor multiplies it: elsewhere it is emulated.

    Args:
        multiplies_bfloat16: The processor has instructions for it.
        wanted: As in `resolve_backend`.
    """
    if not multiplies_bfloat16 or wanted == "native":
        return torch.float32
    has_native = wanted == "auto" and not isinstance(load(), str)
    return torch.float32 if has_native else torch.bfloat16


def _fastest(dtype: torch.dtype) -> Resolved:
    """On a CPU."""
    note = None
    if dtype == torch.float32:
        library = load()
        if not isinstance(library, str):
            return Resolved("native")
        note = library
    return Resolved("onednn" if packs(dtype) else "torch", note)


def release_freed_memory() -> None:
    """Give memory that is free back to the system: after something large that was used once.

    The native kernels make the allocator keep what is freed, since every round needs it again.
    """
    library = load()
    if not isinstance(library, str):
        library.release_freed_memory()

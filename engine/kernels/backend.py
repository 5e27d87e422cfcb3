"""Which implementation of the kernels a model uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engine.kernels.native.library import load
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


def resolve_backend(device: torch.device, dtype: torch.dtype) -> Resolved:
    """The fastest backend for a device and a type of arithmetic.

    Builds the native kernels when they are wanted for the first time.
    """
    if device.type != "cpu":
        return Resolved("torch")
    note = None
    if dtype == torch.float32:
        library = load()
        if not isinstance(library, str):
            return Resolved("native")
        note = library
    return Resolved("onednn" if packs(dtype) else "torch", note)

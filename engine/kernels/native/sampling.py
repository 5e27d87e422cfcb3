"""Distributions and draws by the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64

import torch
from torch import Tensor

from engine.kernels.native.library import Library, ProcessingStruct

_BOUNDS = torch.finfo(torch.float32)


class NativeSampling:
    """The functions of `engine.kernels.sampling`, which is the reference, on float32 CPU memory."""

    def __init__(self, library: Library) -> None:
        """Wrap a loaded library."""
        self._library = library

    def best_tokens(self, logits: Tensor) -> Tensor | None:
        """[rows, vocab] -> [rows] int64, or None where a row has no best token."""
        tokens = torch.empty(logits.shape[0], dtype=torch.int64)
        broken = self._library.best_tokens(logits.data_ptr(), *logits.shape, tokens.data_ptr())
        return None if broken else tokens

    def process(
        self,
        logits: Tensor,
        rows: Sequence[int],
        temperatures: Sequence[float],
        top_ks: Sequence[int],
        top_ps: Sequence[float],
    ) -> Tensor | None:
        """[*, vocab] -> [len(rows), vocab], or None where a row has no distribution."""
        count = len(rows)
        # Beyond float32 a temperature would turn into 0, which means greedy, or infinity.
        scales = [t and min(max(t, _BOUNDS.tiny), _BOUNDS.max) for t in temperatures]
        probs = torch.empty(count, logits.shape[1], dtype=torch.float32)
        how = ProcessingStruct(
            sources=(c_int64 * count)(*rows),
            temperatures=(c_float * count)(*scales),
            top_ks=(c_int64 * count)(*top_ks),
            top_ps=(c_double * count)(*top_ps),
        )
        broken = self._library.process(
            ctypes.byref(how), logits.data_ptr(), count, logits.shape[1], probs.data_ptr()
        )
        return None if broken else probs

    def draw(self, p: Tensor, q: Tensor | None, draft: int, uniform: float) -> int:
        """A token of norm(max(p - q, 0)); without q, of p less the draft; draft -1 takes all of p.

        Returns:
            The token, or -1 if there is no mass.
        """
        found: int = self._library.draw(
            p.data_ptr(), None if q is None else q.data_ptr(), draft, p.shape[0], uniform
        )
        return found

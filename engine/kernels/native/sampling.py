"""Distributions, draws and verification by the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64, c_uint64
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.native.bindings import (
    DestinationStruct,
    KeysStruct,
    Library,
    OutcomeStruct,
    ProcessingStruct,
    VerificationStruct,
)
from engine.rng import Key
from engine.sampling import SamplingParams

_BOUNDS = torch.finfo(torch.float32)
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Outcome of each row.

    Attributes:
        accepted: Drafts accepted.
        emitted: The token after them.
        probs: Of each of these tokens, [accepted + 1] under the target's distribution.
        num_fallbacks: Rows where rounding left nothing of the residual.
    """

    accepted: list[int]
    emitted: list[int]
    probs: list[list[float]]
    num_fallbacks: int


class NativeSampling:
    """The functions of `engine.kernels.sampling` and the rules of `engine.verify`, the references.

    On float32 CPU memory.
    """

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
        shape = (len(rows), logits.shape[1])
        probs = torch.empty(shape, dtype=torch.float32)
        how = _processing(rows, temperatures, top_ks, top_ps)
        broken = self._library.process(how, logits.data_ptr(), *shape, probs.data_ptr())
        return None if broken else probs

    def sample(self, p: Tensor, uniforms: Sequence[float]) -> list[int]:
        """A token of every row of p [rows, vocab]; -1 where there is no mass."""
        count, size = p.shape
        _check_rows(p, (len(uniforms), size))
        tokens = (c_int64 * count)()
        points = (c_double * count)(*uniforms)
        self._library.sample(p.data_ptr(), p.stride(0), count, size, points, tokens)
        return list(tokens)

    def draw(
        self,
        logits: Tensor,
        temperatures: Sequence[float],
        top_ks: Sequence[int],
        top_ps: Sequence[float],
        keys: Sequence[Key],
        out: Tensor,
        columns: Tensor | None,
    ) -> list[int] | None:
        """See `engine.kernels.sampling.draw`; None where a row has no distribution."""
        count, size = logits.shape
        _check_rows(out, (count, size if columns is None else out.shape[1]))
        to = DestinationStruct(
            probs=out.data_ptr(),
            stride=out.stride(0),
            columns=None if columns is None else columns.data_ptr(),
        )
        tokens = (c_int64 * count)()
        how = _processing(range(count), temperatures, top_ks, top_ps)
        broken = self._library.draw(
            how, logits.data_ptr(), count, size, ctypes.byref(_keys(keys)), ctypes.byref(to), tokens
        )
        return None if broken else list(tokens)

    def residual(self, p: Tensor, q: Tensor | None, draft: int, uniform: float) -> int:
        """A token of norm(max(p - q, 0)); without q, of p less the draft; -1 without mass."""
        found: int = self._library.residual(
            p.data_ptr(), None if q is None else q.data_ptr(), draft, p.shape[0], uniform
        )
        return found

    def verify(
        self,
        logits: Tensor,
        first_rows: Sequence[int],
        drafts: Sequence[Sequence[int]],
        drawn_from: Sequence[Tensor] | None,
        params: Sequence[SamplingParams],
        keys: Sequence[Key],
    ) -> Verified | None:
        """The ratio rule, or the delta rule for drafts that were certain.

        Args:
            logits: [T, vocab].
            first_rows: Where each row's len(draft) + 1 rows begin in T.
            drafts: Draft tokens of each row.
            drawn_from: [>= len(draft), vocab] of each row, all of one tensor; None if certain.
            params: Of each row; none is greedy.
            keys: Of each row's first new position.

        Returns:
            None where a row that was looked at has no distribution.
        """
        count, size = len(drafts), logits.shape[1]
        longest = max(map(len, drafts))
        width = longest + 1
        flat = [token for draft in drafts for token in (*draft, *[0] * (longest - len(draft)))]
        accepted, emitted = (c_int64 * count)(), (c_int64 * count)()
        probs = (c_float * (count * width))()
        base, offsets = None, [0] * count
        if drawn_from is not None:
            base = min(q.data_ptr() for q in drawn_from)
            for q, draft in zip(drawn_from, drafts, strict=True):
                _check_rows(q[: len(draft)], (len(draft), size))
            offsets = [(q.data_ptr() - base) // 4 for q in drawn_from]
        asked = VerificationStruct(
            num_rows=count,
            longest=longest,
            first_rows=(c_int64 * count)(*first_rows),
            num_drafts=(c_int64 * count)(*map(len, drafts)),
            drafts=(c_int64 * len(flat))(*flat),
            drawn_from=base,
            drawn_at=(c_int64 * count)(*offsets),
            temperatures=_scales([p.temperature for p in params]),
            top_ks=(c_int64 * count)(*(p.top_k for p in params)),
            top_ps=(c_double * count)(*(p.top_p for p in params)),
            keys=_keys(keys),
            accepted=accepted,
            emitted=emitted,
            probs=probs,
        )
        outcome = OutcomeStruct()
        self._library.verify(ctypes.byref(asked), logits.data_ptr(), size, ctypes.byref(outcome))
        if outcome.num_broken:
            return None
        return Verified(
            accepted=list(accepted),
            emitted=list(emitted),
            probs=[
                probs[row * width : row * width + taken + 1] for row, taken in enumerate(accepted)
            ],
            num_fallbacks=outcome.num_fallbacks,
        )


def _processing(
    rows: Sequence[int],
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
) -> ProcessingStruct:
    count = len(rows)
    return ProcessingStruct(
        sources=(c_int64 * count)(*rows),
        temperatures=_scales(temperatures),
        top_ks=(c_int64 * count)(*top_ks),
        top_ps=(c_double * count)(*top_ps),
    )


def _scales(temperatures: Sequence[float]) -> ctypes.Array[c_float]:
    """Beyond float32 a temperature would turn into 0, which means greedy, or infinity."""
    scales = [t and min(max(t, _BOUNDS.tiny), _BOUNDS.max) for t in temperatures]
    return (c_float * len(scales))(*scales)


def _keys(keys: Sequence[Key]) -> KeysStruct:
    count = len(keys)
    return KeysStruct(
        seeds=(c_uint64 * count)(*(seed & _SEED_MASK for seed, _, _ in keys)),
        rounds=(c_int64 * count)(*(round_index for _, round_index, _ in keys)),
        positions=(c_int64 * count)(*(position for _, _, position in keys)),
    )


def _check_rows(rows: Tensor, shape: tuple[int, int]) -> None:
    """Rows may be apart, but each must lie in one piece."""
    if rows.dtype != torch.float32 or rows.shape != shape or rows.stride(1) != 1:
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)} with strides {rows.stride()}, "
            f"not float32 {shape} in one piece each"
        )

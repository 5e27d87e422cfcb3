"""The native library in this process: loaded once, or a reason why not."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64, c_uint64, c_void_p
from functools import cache

from engine.cache_folder import default_cache
from engine.kernels.native.build import BuildError, build


class LinearStruct(ctypes.Structure):
    """`struct Linear` of `linear.h`."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("norm", c_void_p),
        ("num_in", c_int64),
        ("num_out", c_int64),
        ("is_bfloat16", c_int64),
        ("is_gated", c_int64),
        ("eps", c_float),
    )


class AttentionStruct(ctypes.Structure):
    """`struct Attention` of `attention.h`."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("layer_stride", c_int64),
        ("slot_stride", c_int64),
        ("head_stride", c_int64),
        ("num_rows", c_int64),
        ("row_ends", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


class DecoderLayerStruct(ctypes.Structure):
    """`struct DecoderLayer` of `decoder.h`."""

    _fields_ = (
        ("qkv", POINTER(LinearStruct)),
        ("attention_out", POINTER(LinearStruct)),
        ("gate_up", POINTER(LinearStruct)),
        ("down", POINTER(LinearStruct)),
    )


class ProcessingStruct(ctypes.Structure):
    """`struct Processing` of `sampling.h`."""

    _fields_ = (
        ("sources", POINTER(c_int64)),
        ("temperatures", POINTER(c_float)),
        ("top_ks", POINTER(c_int64)),
        ("top_ps", POINTER(c_double)),
    )


class KeysStruct(ctypes.Structure):
    """`struct Keys` of `rng.h`."""

    _fields_ = (
        ("seeds", POINTER(c_uint64)),
        ("rounds", POINTER(c_int64)),
        ("positions", POINTER(c_int64)),
    )


class DestinationStruct(ctypes.Structure):
    """`struct Destination` of `sampling.h`."""

    _fields_ = (("probs", c_void_p), ("stride", c_int64), ("columns", c_void_p))


class VerificationStruct(ctypes.Structure):
    """`struct Verification` of `verify.h`."""

    _fields_ = (
        ("num_rows", c_int64),
        ("longest", c_int64),
        ("first_rows", POINTER(c_int64)),
        ("num_drafts", POINTER(c_int64)),
        ("drafts", POINTER(c_int64)),
        ("drawn_from", c_void_p),
        ("drawn_at", POINTER(c_int64)),
        ("temperatures", POINTER(c_float)),
        ("top_ks", POINTER(c_int64)),
        ("top_ps", POINTER(c_double)),
        ("keys", KeysStruct),
        ("accepted", POINTER(c_int64)),
        ("emitted", POINTER(c_int64)),
        ("probs", POINTER(c_float)),
    )


class OutcomeStruct(ctypes.Structure):
    """`struct Outcome` of `verify.h`."""

    _fields_ = (("num_broken", c_int64), ("num_fallbacks", c_int64))


class Library:
    """The functions of `kernels.cpp`. Pointers are to contiguous float32 memory.

    Attributes:
        lanes: Floats of a vector register; head dimensions must be multiples.
        has_tiles: Weights that are bfloat16 numbers go through the processor's matrix unit.
        packed_bytes: (linear) -> bytes of its panels.
        pack: (linear, weight, panels).
        multiply: (linear, x, rows, residual or None, out).
        attend: (attention, qkv, layer, out).
        decode: (layers, first, end, attention, hidden).
        best_tokens: (logits, rows, vocab, tokens) -> rows without one.
        process: (processing, logits, rows, vocab, probs) -> rows without a distribution.
        sample: (p, floats from one row to the next, rows, vocab, uniforms, tokens).
        draw: (processing, logits, rows, vocab, keys, destination, tokens) -> rows without a
            distribution.
        residual: (p, q or None, draft, vocab, uniform) -> token, or -1.
        verify: (verification, logits, vocab, outcome).
        release_freed_memory: () gives memory that is free back to the system.
    """

    def __init__(self, path: str) -> None:
        """Load the library.

        Raises:
            OSError: It does not load.
        """
        loaded = ctypes.CDLL(path)
        loaded.lanes.restype = c_int64
        self.lanes = int(loaded.lanes())
        loaded.has_tiles.restype = c_int64
        self.has_tiles = bool(loaded.has_tiles())
        self.packed_bytes = loaded.packed_bytes
        self.packed_bytes.argtypes = [POINTER(LinearStruct)]
        self.packed_bytes.restype = c_int64
        self.pack = loaded.pack
        self.pack.argtypes = [POINTER(LinearStruct), c_void_p, c_void_p]
        self.pack.restype = None
        self.multiply = loaded.multiply
        self.multiply.argtypes = [POINTER(LinearStruct), c_void_p, c_int64, c_void_p, c_void_p]
        self.multiply.restype = None
        self.attend = loaded.attend
        self.attend.argtypes = [POINTER(AttentionStruct), c_void_p, c_int64, c_void_p]
        self.attend.restype = None
        self.decode = loaded.decode
        layers = POINTER(DecoderLayerStruct)
        self.decode.argtypes = [layers, c_int64, c_int64, POINTER(AttentionStruct), c_void_p]
        self.decode.restype = None
        self.best_tokens = loaded.best_tokens
        self.best_tokens.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
        self.best_tokens.restype = c_int64
        how, logits = POINTER(ProcessingStruct), (c_void_p, c_int64, c_int64)
        self.process = loaded.process
        self.process.argtypes = [how, *logits, c_void_p]
        self.process.restype = c_int64
        self.sample = loaded.sample
        self.sample.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]
        self.sample.restype = None
        self.draw = loaded.draw
        keys, to = POINTER(KeysStruct), POINTER(DestinationStruct)
        self.draw.argtypes = [how, *logits, keys, to, c_void_p]
        self.draw.restype = c_int64
        self.residual = loaded.residual
        self.residual.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_double]
        self.residual.restype = c_int64
        self.verify = loaded.verify
        asked, outcome = POINTER(VerificationStruct), POINTER(OutcomeStruct)
        self.verify.argtypes = [asked, c_void_p, c_int64, outcome]
        self.verify.restype = None
        self.release_freed_memory = loaded.release_freed_memory
        self.release_freed_memory.restype = None
        loaded.keep_freed_memory()


@cache
def load() -> Library | str:
    """The library, or the reason in one line why there is none. Builds it when first called."""
    try:
        return Library(str(build(default_cache())))
    except (BuildError, OSError, AttributeError) as error:
        return str(error)


def loaded() -> Library:
    """The library where the native backend was chosen, so that it is known to load.

    Raises:
        RuntimeError: It does not load here.
    """
    library = load()
    if isinstance(library, str):
        raise RuntimeError(f"native kernels: {library}")
    return library

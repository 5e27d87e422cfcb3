"""CPU memory in large pages: streaming through it does not wait for address translation."""

from __future__ import annotations

import mmap
from math import prod
from threading import Lock

import torch
from torch import Tensor

_PAGE = 1 << 21  # bytes of a large page on x86-64 and, as a rule, on Arm
_CHUNK = 16 * _PAGE
_ALIGNMENT = 64  # bytes, a cache line


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the CPU; in large pages if it fills some and the system has them."""
    num_bytes = prod(shape) * dtype.itemsize
    memory = _map(num_bytes) if num_bytes >= _PAGE else None
    if memory is None:
        return torch.zeros(shape, dtype=dtype)
    return memory[:num_bytes].view(dtype).view(shape)


class Arena:
    """Many pieces that share large pages. A chunk is freed with the last of its pieces."""

    def __init__(self) -> None:
        """Start without a chunk."""
        self._lock = Lock()
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, zeros, aligned to a cache line."""
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if size > self._left.numel():
                self._left = zeros((max(size, _CHUNK),), torch.uint8)
            piece, self._left = self._left[:num_bytes], self._left[size:]
        return piece


def _map(num_bytes: int) -> Tensor | None:
    """At least so many bytes of fresh memory; None where there are no large pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    # Whole pages, and one more since a mapping need not begin with a large page.
    size = (-(-num_bytes // _PAGE) + 1) * _PAGE
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    return memory[-memory.data_ptr() % _PAGE :]

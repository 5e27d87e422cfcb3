"""What the machine gives at the moment: memory bandwidth, and time stolen by its host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine import large_pages

_NUM_VALUES = 1 << 28  # 1 GiB of float32: far beyond any cache
_REPEATS = 3
_PROC_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Memory bandwidth of all threads together, in bytes per second.

    Attributes:
        read: Of reading.
        copy: Of copying: bytes read plus bytes written.
    """

    read: float
    copy: float

    def to_json(self) -> dict[str, float]:
        """As a JSON value."""
        return {"read_gb_per_s": self.read / 1e9, "copy_gb_per_s": self.copy / 1e9}


def measure_bandwidth() -> Bandwidth:
    """Read and copy bandwidth; takes 2 GiB for about two seconds."""
    values = _ones()
    target = torch.zeros_like(values)
    num_bytes = values.numel() * values.itemsize
    copy = 2 * num_bytes / _fastest(lambda: target.copy_(values))
    return Bandwidth(read=_read(values), copy=copy)


def read_bandwidth() -> float:
    """Read bandwidth in bytes per second; takes 1 GiB for about a second."""
    return _read(_ones())


def _ones() -> Tensor:
    """In large pages, as weights are: reading small ones is up to a fifth slower."""
    return large_pages.zeros((_NUM_VALUES,), torch.float32).fill_(1.0)


def _read(values: Tensor) -> float:
    """The best of several reductions: which of them is bound by memory differs by processor."""
    seconds = min(
        _fastest(reduce) for reduce in (values.sum, values.amax, lambda: torch.dot(values, values))
    )
    return values.numel() * values.itemsize / seconds


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Ticks of all processors since the machine started.

    Attributes:
        steal: Ticks in which the host ran something else,
        total: of these.
    """

    steal: int
    total: int

    def share_stolen_until(self, later: CpuTicks) -> float:
        """Share of the time between that the host took, 0 if no time passed."""
        total = later.total - self.total
        return (later.steal - self.steal) / total if total > 0 else 0.0


def read_ticks() -> CpuTicks | None:
    """Ticks up to now; None where the kernel tells nothing."""
    try:
        return parse_ticks(_PROC_STAT.read_text(encoding="ascii"))
    except OSError:
        return None


def parse_ticks(stat: str) -> CpuTicks | None:
    """Ticks in the text of `/proc/stat`; None where its first line has no steal time.

    The columns are user, nice, system, idle, iowait, irq, softirq, steal, then guest time, which
    user and nice contain already.
    """
    fields = stat.split("\n", 1)[0].split()
    if fields[:1] != ["cpu"] or len(fields) < 9:
        return None
    ticks = [int(field) for field in fields[1:9]]
    return CpuTicks(steal=ticks[7], total=sum(ticks))

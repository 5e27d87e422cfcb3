"""How much of the processors other processes took while we were measuring."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class LoadWatch:
    """Share of the machine that others (stolen time included) used since the last look."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """Start watching; where the kernel tells nothing, the share is always 0."""
        self._stat = stat
        self._last = self._read()

    def others_share(self) -> float:
        """CPU seconds of others / (wall seconds * cores), since the last call."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None:
            return 0.0
        wall = self._last[0] - before[0]
        others = (self._last[1] - before[1]) - (self._last[2] - before[2])
        return max(0.0, others / max(wall * (os.cpu_count() or 1), 1e-9))

    def _read(self) -> tuple[float, float, float] | None:
        """Monotonic seconds, busy CPU seconds of the machine, CPU seconds of this process."""
        try:
            fields = self._stat.read_text().split("\n", 1)[0].split()[1:9]
            user, nice, system, _idle, _wait, irq, softirq, steal = (int(field) for field in fields)
        except (OSError, ValueError):
            return None
        busy = (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
        own = os.times()
        return monotonic(), busy, own.user + own.system

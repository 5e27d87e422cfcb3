"""Which process works on a run, and whether that process is still there.

An owner is a token `BOOT:PID:START`: the process id alone would be taken for alive when a
later process got the same number, so the boot and the process's start time go with it. The
token holds within one host, as the SQLite file does; two containers with separate process
ids must not share a store.
"""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def current_owner() -> str:
    """Token of the calling process."""
    pid = os.getpid()
    return f"{_boot_id()}:{pid}:{_start_ticks(pid) or ''}"


def is_alive(owner: str) -> bool:
    """Whether the process behind a token still runs."""
    boot_id, pid_text, started = owner.split(":")
    if boot_id != _boot_id():
        return False
    pid = int(pid_text)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # It exists and belongs to another user.
        pass
    ticks = _start_ticks(pid)
    return ticks is None or ticks == started


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # Not Linux: the process id must do.
        return ""


def _start_ticks(pid: int) -> str | None:
    """Start time in clock ticks since boot; empty for a zombie, None where it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may itself hold spaces.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started

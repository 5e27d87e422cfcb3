"""Tests of store.owner: whose process a token means, and whether it lives."""

import os
import subprocess
import sys

from store.owner import current_owner, is_alive


def test_own_process_is_alive() -> None:
    """The process that asks is there."""
    assert is_alive(current_owner())


def test_other_user_process_is_alive() -> None:
    """Process 1 counts as alive, whoever may signal it."""
    boot = current_owner().split(":")[0]
    started = _start_of(1)
    assert is_alive(f"{boot}:1:{started}")


def test_ended_process_is_dead() -> None:
    """A process is dead once it has ended, also while nobody has collected its exit code."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    token = f"{current_owner().split(':')[0]}:{child.pid}:{_start_of(child.pid)}"
    assert is_alive(token)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # Leaves a zombie behind.
    assert not is_alive(token)
    child.communicate()
    assert not is_alive(token)


def test_reused_process_id_is_dead() -> None:
    """The same number with another start time, or before a reboot, is another process."""
    boot, pid, started = current_owner().split(":")
    assert not is_alive(f"{boot}:{pid}:{int(started) - 1}")
    assert not is_alive(f"other-boot:{pid}:{started}")


def _start_of(pid: int) -> str:
    """The kernel's start time of a process whose name holds no bracket."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]

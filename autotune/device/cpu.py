"""What the CPU and the container it runs in allow: model, cores, instruction sets, memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC_ROOT = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")

# Kernel flag -> our name, in the order shown. Only what matrix kernels choose between.
_ISA = {
    "sse4_2": "sse4_2",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "neon": "neon",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The CPU as this process may use it.

    Attributes:
        name: Model name, or the best description there is.
        cores: Logical cores this process may run on, a container's quota included.
        isa: Instruction sets that matter to matrix kernels.
        memory_bytes: Smaller of the machine's memory and the container's limit, None if unknown.
    """

    name: str
    cores: int
    isa: tuple[str, ...]
    memory_bytes: int | None


def read_cpu(proc_root: Path = PROC_ROOT, cgroup_root: Path = CGROUP_ROOT) -> CpuFacts:
    """Reads the facts from `/proc`, and from the platform where there is none.

    Args:
        proc_root: Where `/proc` is.
        cgroup_root: Where the control groups are mounted, version 1 or 2.
    """
    cpuinfo = _first_values(proc_root / "cpuinfo")
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    if not flags and platform.machine() in ("arm64", "aarch64"):
        flags = ["neon"]  # part of every 64-bit Arm core
    return CpuFacts(
        name=_name(cpuinfo),
        cores=_cores(proc_root, cgroup_root),
        isa=tuple(dict.fromkeys(name for flag, name in _ISA.items() if flag in flags)),
        memory_bytes=_memory_bytes(proc_root, cgroup_root),
    )


def _name(cpuinfo: dict[str, str]) -> str:
    if name := cpuinfo.get("model name"):
        return " ".join(name.split())
    machine = platform.machine() or "unknown"
    if part := cpuinfo.get("CPU part"):  # Arm kernels give numbers in place of a name
        return f"{machine} implementer {cpuinfo.get('CPU implementer', '?')} part {part}"
    return platform.processor() or machine


def _cores(proc_root: Path, cgroup_root: Path) -> int:
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    quotas = [_core_quota(group) for group in _groups(proc_root, cgroup_root, "cpu")]
    return max(1, int(min([allowed, *(quota for quota in quotas if quota is not None)])))


def _core_quota(group: Path) -> float | None:
    """Cores that a group's time quota amounts to, None for no limit."""
    quota, period = [*_text(group / "cpu.max").split(), "", ""][:2]
    if not quota:
        quota = _text(group / "cpu.cfs_quota_us").strip()
        period = _text(group / "cpu.cfs_period_us").strip()
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None  # "max" in version 2, -1 in version 1
    return int(quota) / int(period)


def _memory_bytes(proc_root: Path, cgroup_root: Path) -> int | None:
    limits = []
    for group in _groups(proc_root, cgroup_root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _text(group / name).strip()
            if limit.isdigit():
                limits.append(int(limit))
    machine = _machine_memory_bytes(proc_root)
    return min(limits if machine is None else [machine, *limits], default=None)


def _machine_memory_bytes(proc_root: Path) -> int | None:
    total = _first_values(proc_root / "meminfo").get("MemTotal", "").split()
    if total and total[0].isdigit():
        return int(total[0]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _groups(proc_root: Path, cgroup_root: Path, controller: str) -> Iterator[Path]:
    """The process's group for a controller and its ancestors: each of them may set a limit.

    Inside a container the path may be the host's and not exist; the ancestors then end at the
    container's own root, which is the group in question.
    """
    for line in _text(proc_root / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = cgroup_root
        elif controller in controllers.split(","):
            base = cgroup_root / controller
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            yield base / group


def _first_values(path: Path) -> dict[str, str]:
    """First value of every `key : value` line."""
    values: dict[str, str] = {}
    for line in _text(path).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


def _text(path: Path) -> str:
    """Content of a small system file, empty where it is missing or denied."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

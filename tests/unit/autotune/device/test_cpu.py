"""The CPU's facts from made-up `/proc` and control-group trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.device.cpu import CpuFacts, read_cpu

GIB = 1 << 30
X86 = """processor\t: 0
model name\t: Example  CPU @ 2.0GHz
flags\t\t: fpu sse4_2 avx avx2 fma avx512f avx512_bf16 amx_tile amx_bf16 nonsense

processor\t: 1
model name\t: Another
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp i8mm bf16 sve
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


class Tree:
    """A `/proc` and a control-group mount in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"

    def write(self, **files: str) -> Tree:
        """Writes files below `/proc`; `__` in a name stands for a slash."""
        for name, text in files.items():
            self._put(self.proc / name.replace("__", "/"), text)
        return self

    def limit(self, path: str, text: str) -> Tree:
        """Writes one file below the control-group mount."""
        self._put(self.cgroup / path, text)
        return self

    def read(self) -> CpuFacts:
        """Reads the facts from this tree."""
        return read_cpu(self.proc, self.cgroup)

    @staticmethod
    def _put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A machine with 16 GiB on which this process may use eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return Tree(tmp_path).write(cpuinfo=X86, meminfo=f"MemTotal: {16 * GIB // 1024} kB\n")


def test_x86(tree: Tree) -> None:
    """Name, allowed cores, the instruction sets that matter, and memory."""
    assert tree.read() == CpuFacts(
        name="Example CPU @ 2.0GHz",
        cores=8,
        isa=("sse4_2", "avx", "fma", "avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"),
        memory_bytes=16 * GIB,
    )


def test_arm(tree: Tree) -> None:
    """An Arm kernel gives numbers for a name and other words for the instruction sets."""
    facts = tree.write(cpuinfo=ARM).read()
    assert facts.name.endswith("implementer 0x41 part 0xd4f")
    assert facts.isa == ("neon", "dotprod", "i8mm", "bf16", "sve")


def test_limits_of_version_2(tree: Tree) -> None:
    """The tightest limit of the group and its ancestors counts."""
    tree.write(self__cgroup="0::/a/b\n")
    tree.limit("a/b/memory.max", "max\n").limit("a/memory.max", f"{4 * GIB}\n")
    tree.limit("a/b/cpu.max", "250000 100000\n").limit("a/cpu.max", "max 100000\n")
    assert (tree.read().cores, tree.read().memory_bytes) == (2, 4 * GIB)


def test_limits_of_version_1(tree: Tree) -> None:
    """The older layout is read too, also where the group's path is the host's."""
    tree.write(self__cgroup="4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\nodd\n")
    tree.limit("memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    tree.limit("cpu/cpu.cfs_quota_us", "50000\n").limit("cpu/cpu.cfs_period_us", "100000\n")
    assert (tree.read().cores, tree.read().memory_bytes) == (1, 2 * GIB)


def test_no_limits(tree: Tree) -> None:
    """Unlimited groups leave the machine's own figures."""
    tree.write(self__cgroup="4:memory:/\n2:cpu:/\n")
    tree.limit("memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.limit("cpu/cpu.cfs_quota_us", "-1\n").limit("cpu/cpu.cfs_period_us", "100000\n")
    assert (tree.read().cores, tree.read().memory_bytes) == (8, 16 * GIB)


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without `/proc` the platform answers, and memory may be unknown."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.delattr(os, "sysconf")
    assert Tree(tmp_path).read() == CpuFacts(
        name="arm64", cores=10, isa=("neon",), memory_bytes=None
    )


def test_this_machine() -> None:
    """The real machine has a name, a core and some memory."""
    facts = read_cpu()
    assert facts.name
    assert facts.cores >= 1
    assert facts.memory_bytes

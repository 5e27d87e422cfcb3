"""How much of the machine others use, from the kernel's counters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.tuning.quiet import LoadWatch

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """A /proc/stat, a clock and this process's own CPU time, all under control."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stat = folder / "stat"
        self.now_s = 100.0
        self.own_s = 5.0
        self.fields = dict.fromkeys(
            ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"), 1000
        )
        monkeypatch.setattr("autotune.tuning.quiet.monotonic", lambda: self.now_s)
        monkeypatch.setattr("autotune.tuning.quiet.os.times", self._times)
        monkeypatch.setattr("autotune.tuning.quiet.os.cpu_count", lambda: 4)
        self.write()

    def _times(self) -> os.times_result:
        return os.times_result((self.own_s, 0.0, 0.0, 0.0, 0.0))

    def write(self) -> None:
        """Write the counters."""
        counts = " ".join(str(count) for count in self.fields.values())
        self.stat.write_text(f"cpu  {counts} 0 0\ncpu0 1 2 3\nintr 5\n")

    def spend(self, wall_s: float, own_s: float = 0.0, **busy_s: float) -> None:
        """Let time pass: own CPU seconds, and counters in seconds."""
        self.now_s += wall_s
        self.own_s += own_s
        for name, seconds in busy_s.items():
            self.fields[name] += round(seconds * TICKS_PER_S)
        self.write()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Four processors."""
    return Machine(tmp_path, monkeypatch)


def test_own_work_is_no_load(machine: Machine) -> None:
    """What this process spent itself does not count."""
    watch = LoadWatch(machine.stat)

    machine.spend(2.0, own_s=3.0, user=3.0)

    assert watch.others_share() == 0.0


@pytest.mark.parametrize("kind", ["user", "nice", "system", "irq", "softirq", "steal"])
def test_others_work_is_a_share_of_all_processors(machine: Machine, kind: str) -> None:
    """One of four processors busy with something else is a quarter; stolen time counts too."""
    watch = LoadWatch(machine.stat)

    machine.spend(2.0, own_s=1.0, **({"user": 1.0} if kind != "user" else {}))
    machine.spend(2.0, **{kind: 5.0 if kind == "user" else 4.0})

    assert watch.others_share() == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["idle", "iowait"])
def test_idle_time_is_no_load(machine: Machine, kind: str) -> None:
    """Waiting is not work."""
    watch = LoadWatch(machine.stat)

    machine.spend(2.0, **{kind: 8.0})

    assert watch.others_share() == 0.0


def test_each_look_starts_anew(machine: Machine) -> None:
    """The share is that since the last look."""
    watch = LoadWatch(machine.stat)
    machine.spend(1.0, user=4.0)
    assert watch.others_share() == pytest.approx(1.0)

    machine.spend(1.0)

    assert watch.others_share() == 0.0


def test_no_time_is_no_division(machine: Machine) -> None:
    """Two looks at one moment."""
    assert LoadWatch(machine.stat).others_share() == 0.0


@pytest.mark.parametrize("text", ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_counters_of_another_form_tell_nothing(machine: Machine, text: str) -> None:
    """Kernels without these counters are taken for quiet."""
    machine.stat.write_text(text)
    watch = LoadWatch(machine.stat)

    assert watch.others_share() == 0.0


def test_no_counters_tell_nothing(tmp_path: Path) -> None:
    """Systems without /proc are taken for quiet."""
    assert LoadWatch(tmp_path / "missing").others_share() == 0.0

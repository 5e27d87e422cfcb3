"""Running a child to its end, with small real processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from autotune.service.supervisor import Child, ChildEnd, run_child
from tests.support.service_process import HANG_GUARD_S, is_gone

QUICK = (sys.executable, "-S", "-I", "-c")


class Run:
    """What a child said, and how it ended."""

    def __init__(
        self,
        *command: str,
        stdin: bytes = b"",
        timeout_s: float = HANG_GUARD_S,
        grace_s: float = HANG_GUARD_S,
        stop_at: bytes | None = None,
    ) -> None:
        self.pid = 0
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        stop = threading.Event()

        def on_stdout(line: bytes) -> None:
            self.stdout.append(line)
            if stop_at is not None and line.startswith(stop_at):
                stop.set()

        self.end = run_child(
            Child(command=command, stdin=stdin, timeout_s=timeout_s, grace_s=grace_s),
            stop,
            on_start=self._started,
            on_stdout=on_stdout,
            on_stderr=self.stderr.append,
        )

    def _started(self, pid: int) -> None:
        self.pid = pid


def test_lines_and_exit_code() -> None:
    """Every line of both outputs comes through, also one without an end."""
    run = Run("sh", "-c", "echo one; echo; printf two; echo warning >&2; exit 3")
    assert run.stdout == [b"one", b"", b"two"]
    assert run.stderr == [b"warning"]
    assert run.end == ChildEnd(cause="itself", exit_code=3)
    assert is_gone(run.pid)


def test_standard_input_of_any_size() -> None:
    """A request larger than a pipe reaches a child, and a child that does not read is no harm."""
    text = b"x" * 1_000_000
    assert Run("wc", "-c", stdin=text).stdout[0].strip() == b"1000000"
    assert Run("true", stdin=text).end.exit_code == 0


def test_much_output_is_not_lost() -> None:
    """More than a pipe holds, written in one go before the end."""
    run = Run("sh", "-c", "seq 1 100000; seq 1 100000 >&2")
    expected = [str(number).encode() for number in range(1, 100_001)]
    assert run.stdout == expected
    assert run.stderr == expected


def test_overlong_line_is_cut() -> None:
    """A line that never ends does not fill the memory, and the next one is read again."""
    run = Run(*QUICK, "print('x' * 5_000_000); print('next')")
    assert [len(line) for line in run.stdout[:-1]] == [1 << 16]
    assert run.stdout[-1] == b"next"


def test_group_ends_with_the_child() -> None:
    """What a child leaves running in its group is killed, though it holds the outputs open."""
    run = Run("sh", "-c", "sleep 600 & echo $!")
    assert run.end == ChildEnd(cause="itself", exit_code=0)
    assert is_gone(int(run.stdout[0]))


def test_timeout() -> None:
    """A child that takes too long is asked to end."""
    run = Run("sleep", "600", timeout_s=0.2)
    assert run.end == ChildEnd(cause="timeout", exit_code=-signal.SIGTERM)


def test_stop_lets_the_child_clean_up() -> None:
    """A stop from outside is told apart from a timeout, and a last word is heard."""
    run = Run("sh", "-c", "trap 'echo bye; exit 7' TERM; echo on; sleep 600 & wait", stop_at=b"on")
    assert run.stdout == [b"on", b"bye"]
    assert run.end == ChildEnd(cause="stop", exit_code=7)


def test_deaf_child_is_killed() -> None:
    """After the grace time comes SIGKILL, for its children too."""
    script = "trap '' TERM; sleep 600 & echo $!; while :; do sleep 1; done"
    run = Run("sh", "-c", script, grace_s=0.3, stop_at=b"")
    assert run.end == ChildEnd(cause="stop", exit_code=-signal.SIGKILL)
    assert is_gone(int(run.stdout[0]))


def test_closed_outputs_are_not_the_end() -> None:
    """A child that closes its outputs is still waited for."""
    run = Run("sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5")
    assert run.end == ChildEnd(cause="itself", exit_code=5)


def test_own_group() -> None:
    """A terminal's Ctrl-C, which goes to a group, does not reach the child."""
    run = Run(*QUICK, "import os; print(os.getpgid(0), os.getsid(0))")
    assert run.stdout == [f"{run.pid} {run.pid}".encode()]
    assert os.getpgid(0) != run.pid


def test_raising_reader_leaves_no_child() -> None:
    """Whatever goes wrong here, the child does not stay."""
    started: list[int] = []

    def refuse(line: bytes) -> None:
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        run_child(
            Child(command=("sh", "-c", "echo x; sleep 600"), stdin=b"", timeout_s=60, grace_s=60),
            threading.Event(),
            on_start=started.append,
            on_stdout=refuse,
            on_stderr=refuse,
        )
    assert is_gone(started[0])


def test_missing_program(tmp_path: Path) -> None:
    """A program that is not there is an OSError, as anywhere."""
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=re.escape(missing)):
        Run(missing)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exit code 0"),
        (-11, "killed by signal 11 (Segmentation fault)"),
        (-9, "killed by signal 9 (Killed), as the kernel does when memory runs out"),
        (-40, "killed by signal 40 (Real-time signal 6)"),
    ],
)
def test_description(exit_code: int, words: str) -> None:
    """The end in words, for every number a process can end with."""
    assert ChildEnd(cause="itself", exit_code=exit_code).describe() == words

"""Runs one child process to its end, whichever way it comes to it, and leaves nothing behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Literal

_TICK_S = 0.1
_DRAIN_S = 1.0
_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16

OnLine = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """How a child ended.

    Attributes:
        cause: By itself, or because it took too long or the service stops.
        exit_code: Its exit code, negative for the signal that killed it.
    """

    cause: Literal["itself", "timeout", "stop"]
    exit_code: int

    def describe(self) -> str:
        """The exit code in words."""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        number = -self.exit_code
        described = f"killed by signal {number} ({signal.strsignal(number)})"
        if number == signal.SIGKILL:
            return f"{described}, as the kernel does when memory runs out"
        return described


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What to run and how long.

    Attributes:
        command: Program and arguments.
        stdin: What it reads.
        timeout_s: Seconds until it is asked to end.
        grace_s: Seconds between asking with SIGTERM and forcing with SIGKILL.
        environment: Its environment; None is the parent's own.
    """

    command: Sequence[str]
    stdin: bytes
    timeout_s: float
    grace_s: float
    environment: Mapping[str, str] | None = None


def run_child(
    child: Child,
    stop: threading.Event,
    *,
    on_start: Callable[[int], None],
    on_stdout: OnLine,
    on_stderr: OnLine,
) -> ChildEnd:
    """Run a child in a process group of its own, which is gone on return.

    Args:
        child: What to run.
        stop: Ends the child early when it is set, from any thread.
        on_start: Gets the process id.
        on_stdout: Gets each line of standard output, without its end; an overlong line is cut.
        on_stderr: Gets each line of standard error likewise.

    Raises:
        OSError: The program cannot be started.
    """
    # A file, not a pipe: writing to a child that does not read would block.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(child.stdin)
        stdin.seek(0)
        process = subprocess.Popen(
            child.command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child.environment,
            start_new_session=True,
        )
    with process:
        try:
            on_start(process.pid)
            with _Output(process, on_stdout, on_stderr) as output:
                cause = _await_end(process.pid, child, stop, output)
                _signal_group(process.pid, signal.SIGKILL)  # Whatever it started.
                output.drain()
        finally:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
    return ChildEnd(cause=cause, exit_code=process.returncode)


def _await_end(
    pid: int, child: Child, stop: threading.Event, output: _Output
) -> Literal["itself", "timeout", "stop"]:
    cause: Literal["itself", "timeout", "stop"] = "itself"
    deadline = time.monotonic() + child.timeout_s
    while not _has_ended(pid):
        output.read(_TICK_S)
        now = time.monotonic()
        if cause == "itself" and (stop.is_set() or now >= deadline):
            cause = "stop" if stop.is_set() else "timeout"
            _signal_group(pid, signal.SIGTERM)
            deadline = now + child.grace_s
        elif cause != "itself" and now >= deadline:
            _signal_group(pid, signal.SIGKILL)
    return cause


def _has_ended(pid: int) -> bool:
    # Not reaped yet: until then the number of the process and its group are not given away.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # All gone.
        pass


class _Output:
    """Both outputs of a process, read without ever waiting for one of them."""

    def __init__(
        self, process: subprocess.Popen[bytes], on_stdout: OnLine, on_stderr: OnLine
    ) -> None:
        self._selector = selectors.DefaultSelector()
        assert process.stdout is not None
        assert process.stderr is not None
        for stream, on_line in ((process.stdout, on_stdout), (process.stderr, on_stderr)):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, _Lines(on_line))

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: object) -> None:
        self._selector.close()

    def read(self, timeout_s: float) -> None:
        """Pass on what has come, waiting a little if nothing has."""
        if not self._selector.get_map():
            time.sleep(timeout_s)  # Both were closed by the child.
        for key, _ in self._selector.select(timeout_s):
            stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
            if chunk := os.read(stream.fileno(), _CHUNK_BYTES):
                key.data.feed(chunk)
            else:
                key.data.end()
                self._selector.unregister(stream)

    def drain(self) -> None:
        """Pass on the rest, unless a process outside the group keeps an output open."""
        deadline = time.monotonic() + _DRAIN_S
        while self._selector.get_map() and time.monotonic() < deadline:
            self.read(_TICK_S)


class _Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Pass on the lines that are complete."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line[:_MAX_LINE_BYTES])
        self._rest = rest[:_MAX_LINE_BYTES]

    def end(self) -> None:
        """Pass on a last line without an end."""
        if self._rest:
            self._on_line(self._rest)
            self._rest = b""

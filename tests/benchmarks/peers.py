"""One contestant in a process of its own: asked, and stopped while others are measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 10.0
_TAIL_LINES = 3
_CHUNK_BYTES = 1 << 16


class PeerError(RuntimeError):
    """A contestant did not start or did not answer; the message is one line."""


class Peer:
    """A long-lived child that runs `speed_child.serve`, in a process group of its own.

    The whole group is stopped (SIGSTOP) but while it loads or answers: vLLM's engine process
    would otherwise poll, and any process wakes up now and then.
    """

    def __init__(
        self,
        name: str,
        module: str,
        description: Mapping[str, object],
        *,
        log: Path,
        environment: Mapping[str, str],
        python: Path | None = None,
    ) -> None:
        """Start the child; `wait_until_ready` waits for it.

        Args:
            name: For messages.
            module: What to run.
            description: For the child.
            log: File that takes its output.
            environment: All of its environment.
            python: Interpreter; None is our own.

        Raises:
            PeerError: The interpreter cannot be started.
        """
        self.name = name
        self._log = log
        self._buffer = b""
        self._is_ready = False
        self._answers, answers_end = os.pipe()
        command: Sequence[str] = (
            str(python or sys.executable),
            "-m",
            module,
            json.dumps(description),
            str(answers_end),
        )
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    cwd=_ROOT,
                    env=dict(environment),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(answers_end,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._answers)
            raise PeerError(f"{name}: {command[0]}: {error.strerror}") from error
        finally:
            os.close(answers_end)

    def __enter__(self) -> Peer:
        """The peer itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self.close()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the child to have loaded its model, and stop it.

        Raises:
            PeerError: It ended, or takes too long.
        """
        self._read_answer(timeout_s)
        self._is_ready = True
        self._signal(signal.SIGSTOP)

    def ask(self, command: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """Let the child go on, for one command.

        Raises:
            PeerError: It ended, or takes too long.
        """
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # Reading its answer will say why.
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
            return self._read_answer(timeout_s)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End every process of the group; may be called again.

        A child that reads its commands is let go first: vLLM then removes its shared memory.
        """
        if self._process.returncode is not None:
            return
        try:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            if self._is_ready:
                self._signal(signal.SIGCONT)
                self._await_end(_GRACE_S)
        finally:
            # The leader is not reaped yet, so the number of its group is not given away.
            self._signal(signal.SIGKILL)
            self._process.wait()
            os.close(self._answers)

    def _await_end(self, timeout_s: float) -> None:
        """Until the leader has ended, which stays unreaped."""
        deadline = monotonic() + timeout_s
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, options) is None and monotonic() < deadline:
            sleep(0.05)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read_answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = monotonic() + timeout_s
        while b"\n" not in self._buffer:
            wait_s = max(0.0, deadline - monotonic())
            if not select.select([self._answers], [], [], wait_s)[0]:
                raise PeerError(f"{self.name}: no answer in {timeout_s:.0f} s: {self._tail()}")
            chunk = os.read(self._answers, _CHUNK_BYTES)
            if not chunk:
                # The pipe is closed before the error is printed.
                self._await_end(_GRACE_S)
                raise PeerError(f"{self.name}: ended: {self._tail()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tail(self) -> str:
        """The end of its output, in one line."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:])

"""A running service, seen from outside: its log, its signals, its exit code."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HANG_GUARD_S = 60.0
"""Far above what anything here takes; only a hang comes to it."""


class ServiceProcess:
    """A service in a process of its own; killed at the end if it has not ended by then.

    Args:
        command: What starts it.
        environment: Added to the environment, which has no variable of ours otherwise.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPECTUNED_")}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._new: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(HANG_GUARD_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next line of the log with this event and these fields."""
        while True:
            try:
                line = self._new.get(timeout=HANG_GUARD_S)
            except queue.Empty:
                raise AssertionError(f"no {event} {fields} in {self.lines}") from None
            if fields.items() <= line.items() and line["event"] == event:
                return line

    def send(self, number: int) -> None:
        """Send a signal to the service alone."""
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; the exit code."""
        code = self._process.wait(HANG_GUARD_S)
        self._reader.join(HANG_GUARD_S)
        return code

    def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        self.send(signal.SIGTERM)
        return self.end()

    def output(self) -> str:
        """What it printed on standard output, after its end."""
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self.lines.append(line)
                self._new.put(json.loads(line))


def with_search(config: Path, search: str, grace_s: float = 8.0) -> ServiceProcess:
    """The service with a search of `tests.support.fake_worker`."""
    command = (sys.executable, "-m", "tests.support.serve", str(config), search, str(grace_s))
    return ServiceProcess(command, {})


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not, within the hang guard."""
    deadline = time.monotonic() + HANG_GUARD_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False

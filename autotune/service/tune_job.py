"""One scheduled search: a worker process, what it tells, and what is left in the store."""

from __future__ import annotations

import os
import site
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import ValidationError

from autotune.service.config import ServiceConfig
from autotune.service.health import Health
from autotune.service.protocol import WorkerReport, WorkerRequest
from autotune.service.supervisor import Child, ChildEnd, run_child
from store.errors import StoreError
from store.repository import Store, utc_now

_log = structlog.get_logger()

# -P: a file named like a module in the working directory must not be taken for it.
WORKER_COMMAND = (sys.executable, "-P", "-m", "autotune.service.worker")

STORE_TIMEOUT_S = 1.0
"""Seconds the service itself waits for a lock: it must be able to stop in the meantime."""

_MAX_TEXT = 500
_MAX_STDERR_LINES = 100


def interrupt_stale_runs(store: Store) -> None:
    """Mark the runs that a dead process left running as interrupted.

    Raises:
        StoreError: The store cannot be written.
    """
    if runs := store.interrupt_stale_runs(utc_now()):
        _log.warning("runs interrupted", run_ids=list(runs))


class TuneJob:
    """The job: run a search in a worker, and survive whatever happens to either.

    Args:
        config: The service's configuration.
        command: Starts a worker.
        grace_s: Seconds a worker gets to end after SIGTERM.
        stop: Set when the service stops.
        health: Told what happens.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        command: Sequence[str],
        grace_s: float,
        stop: threading.Event,
        health: Health,
    ) -> None:
        self._config = config
        self._command = command
        self._grace_s = grace_s
        self._stop = stop
        self._health = health

    def __call__(self) -> None:
        """Run once; a store or worker that cannot be used is left for the next run."""
        if self._stop.is_set():
            return
        try:
            self._interrupt_stale_runs()
            self._health.set("tuning")
            try:
                reports, end = self._run_worker()
            finally:
                self._interrupt_stale_runs()
        except (StoreError, OSError) as error:
            self._health.set("failing", f"{error}; tried again at the next run")
        else:
            self._conclude(reports.outcome, end)

    def _interrupt_stale_runs(self) -> None:
        location = self._config.store_location
        with Store.open(location, migrate=False, busy_timeout_s=STORE_TIMEOUT_S) as store:
            interrupt_stale_runs(store)

    def _run_worker(self) -> tuple[_Reports, ChildEnd]:
        config, reports = self._config, _Reports()
        request = WorkerRequest(
            settings=config.tune,
            store=config.store_location,
            studies=config.studies,
            memory_bytes=config.worker_memory_bytes,
            parent_pid=os.getpid(),
        )
        end = run_child(
            Child(
                command=self._command,
                stdin=request.model_dump_json().encode(),
                timeout_s=config.worker_timeout_s,
                grace_s=self._grace_s,
                environment=_environment(),
            ),
            self._stop,
            on_start=lambda pid: _log.info("search started", pid=pid),
            on_stdout=reports.take,
            on_stderr=reports.take_stderr,
        )
        _log.info("search ended", cause=end.cause, exit=end.describe())
        return reports, end

    def _conclude(self, outcome: WorkerReport | None, end: ChildEnd) -> None:
        """Set the state by what the worker told last, else by how it ended."""
        match outcome, end.cause:
            case WorkerReport(kind="published"), _:
                _log.info("published", scope=outcome.scope, generation=outcome.generation)
                self._health.set("idle")
            case WorkerReport(kind="unpublished"), _:
                self._health.set("failing", "no valid trial: what was published before stays")
            case _, "stop":
                self._health.set("idle", "the search was interrupted")
            case _, "timeout":
                limit = f"worker_timeout_s = {self._config.worker_timeout_s:g}"
                self._health.set(
                    "failing", f"the search took longer than {limit}: raise it, or search less"
                )
            case WorkerReport(kind="failed"), _:
                self._health.set("failing", outcome.text[:_MAX_TEXT])
            case _:
                self._health.set("failing", f"the worker did not finish: {end.describe()}")


class _Reports:
    """Logs what a worker writes, and keeps how its search came out."""

    def __init__(self) -> None:
        self.outcome: WorkerReport | None = None
        self._stderr_lines = 0

    def take(self, line: bytes) -> None:
        """One line of standard output."""
        try:
            report = WorkerReport.model_validate_json(line)
        except ValidationError:
            _log.warning("worker sent a line that is no report", num_bytes=len(line))
            return
        if report.kind in ("stage", "note"):
            _log.info(report.kind, text=report.text[:_MAX_TEXT])
        else:
            self.outcome = report

    def take_stderr(self, line: bytes) -> None:
        """One line of standard error: warnings of libraries, or the place of a crash."""
        self._stderr_lines += 1
        if self._stderr_lines <= _MAX_STDERR_LINES:
            _log.warning("worker stderr", text=line.decode(errors="replace")[:_MAX_TEXT])
        elif self._stderr_lines == _MAX_STDERR_LINES + 1:
            _log.warning("worker stderr: further lines are left out")


def _environment() -> dict[str, str]:
    """The worker finds our packages also where they are not installed (daemon.py)."""
    root = str(Path(__file__).parents[2])
    if root in site.getsitepackages():
        return dict(os.environ)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

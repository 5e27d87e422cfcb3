"""The process that searches: all device work happens here, so that the service can lose it.

`python -m autotune.service.worker` runs one search. It ends with its parent: Linux sends it SIGKILL
when the thread that started it ends, whatever ended that. Elsewhere nothing does so, and a
service that is killed outright leaves its worker to finish alone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from autotune.errors import AutotuneError
from autotune.progress import Progress, Stage
from autotune.service.protocol import WorkerReport, WorkerRequest
from autotune.settings import TuneSettings
from engine.errors import EngineError
from store.errors import StoreError
from store.records import Publication
from store.repository import Store

Tune = Callable[[TuneSettings, Store, Path, Progress], Publication | None]
"""The search, as `autotune.tune.tune`."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ReportedProgress:
    """Progress of a search as reports; ticks within a stage are not reported."""

    def __init__(self, report: Callable[[WorkerReport], None]) -> None:
        """Report to `report`."""
        self._report = report

    def plan(self, stages: Sequence[Stage]) -> None:
        """Ignore."""

    def begin(self, title: str) -> None:
        """Report the stage."""
        self._report(WorkerReport(kind="stage", text=title))

    def update(self, fraction: float, detail: str = "") -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Report the note."""
        self._report(WorkerReport(kind="note", text=text))


def main(tune: Tune | None = None) -> int:
    """Run the search that is asked for on standard input.

    Args:
        tune: The search; None loads the real one, and with it torch and Optuna.

    Returns:
        The exit code: 0 if the search ended by itself, published or not.
    """
    _take_signals()
    _die_with_parent()
    output = _claim_standard_output()

    def report(message: WorkerReport) -> None:
        output.write(message.model_dump_json(exclude_defaults=True).encode() + b"\n")

    request = WorkerRequest.model_validate_json(sys.stdin.buffer.read())
    if os.getppid() != request.parent_pid:  # It died before we could bind ourselves to it.
        return 1
    if request.memory_bytes is not None:
        _limit_memory(request.memory_bytes)
    faulthandler.enable()  # Names the place of a crash in native code; shows no values.
    try:
        publication = _search(request, tune, ReportedProgress(report))
    except Exception as error:
        report(WorkerReport(kind="failed", text=_reason(error)))
        return 1
    if publication is None:
        report(WorkerReport(kind="unpublished"))
    else:
        report(
            WorkerReport(
                kind="published", scope=publication.scope, generation=publication.generation
            )
        )
    return 0


def _search(request: WorkerRequest, tune: Tune | None, progress: Progress) -> Publication | None:
    if tune is None:
        from autotune.tuning.tune import tune as tune_for_real

        tune = tune_for_real
    with Store.open(request.store, migrate=False) as store:
        return tune(request.settings, store, request.studies, progress)


def _reason(error: Exception) -> str:
    """What may be told of an error: our own messages, else only where it came from."""
    match error:
        case AutotuneError() | EngineError() | StoreError() | OSError() | ImportError():
            return " ".join(str(error).split())
        case MemoryError():
            return "memory ran out: raise worker_memory_bytes or lower tune.memory_bytes"
        case _:  # Its text may quote a request.
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = ", ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
            return f"unexpected {type(error).__name__} at {places}"


def _take_signals() -> None:
    """Leave by an exception on SIGTERM, so that whatever is open gets closed."""
    signal.signal(signal.SIGTERM, _leave)
    # The service blocks its signals, and children inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # Once is enough; the clean-up may take a while.
    raise SystemExit(128 + number)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _claim_standard_output() -> BinaryIO:
    """Standard output for the reports alone; prints of libraries go to standard error."""
    claimed = os.dup(1)
    os.dup2(2, 1)
    return open(claimed, "wb", buffering=0)


def _limit_memory(limit_bytes: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    sys.exit(main())

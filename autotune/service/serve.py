"""The service: wait, start a search when it is due, stop when told to.

This process only waits and keeps the books; it loads neither torch nor Optuna. What can crash,
hang or run out of memory happens in a worker process (`autotune.service.worker`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import stamina
import structlog

from autotune.errors import ConfigError
from autotune.service.config import ServiceConfig, load_config
from autotune.service.freshness import is_due
from autotune.service.health import Health
from autotune.service.logs import configure_logs
from autotune.service.timetable import Timetable
from autotune.service.tune_job import STORE_TIMEOUT_S, WORKER_COMMAND, TuneJob, interrupt_stale_runs
from store.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from store.repository import Store, utc_now

_log = structlog.get_logger()

EXIT_NEEDS_OPERATOR = 2
"""Exit code of what a restart cannot cure; the systemd unit does not restart after it."""

GRACE_S = 8.0
"""Seconds a worker gets to end, of the ten that the systemd unit gives the service."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STARTING_TICK_S = 0.1
_WAITING_TICK_S = 1.0
_MAX_BACKOFF_S = 60.0


def run(config: Path | None = None) -> int:
    """Run the service until it is told to stop.

    Args:
        config: The configuration file; None as for `load_config`.

    Returns:
        The exit code: 0 after SIGTERM or SIGINT, 2 if the configuration or the store needs
        the operator.
    """
    configure_logs()
    try:
        settings = load_config(config)
    except ConfigError as error:
        _log.error("configuration refused", reason=str(error))
        return error.exit_code
    return serve(settings)


def serve(
    config: ServiceConfig,
    *,
    command: Sequence[str] = WORKER_COMMAND,
    grace_s: float = GRACE_S,
) -> int:
    """Run the service on a configuration that was read. Call it in the main thread.

    Args:
        config: The configuration.
        command: Starts a worker.
        grace_s: Seconds a worker gets to end after SIGTERM.

    Returns:
        The exit code, as `run`.
    """
    # Blocked and waited for, not handled: a handler could run at any point of our own work.
    # Threads started from here on inherit it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        return _serve(config, command, grace_s)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(config: ServiceConfig, command: Sequence[str], grace_s: float) -> int:
    stop, health = threading.Event(), Health()
    job = TuneJob(config, command=command, grace_s=grace_s, stop=stop, health=health)
    timetable = Timetable(config.schedule, job)
    _log.info("service started", store=config.store_location, schedule=config.schedule)
    # Apart from this thread, which must hear a signal while the store is waited for.
    preparation = _in_background(lambda: _prepare(config, health))
    try:
        while not preparation.done():
            if _is_told_to_stop(_STARTING_TICK_S):
                return 0
        due = preparation.result()
        if reason := _why_blocked(config):
            health.set("blocked", reason)
        else:
            health.set("idle")
            timetable.start(run_now=due)
            _log.info("search scheduled", next_run=str(timetable.next_run()))
        while not _is_told_to_stop(_WAITING_TICK_S):
            timetable.check_clock()
        return 0
    except StoreError as error:
        _log.error("store refused", reason=str(error))
        return EXIT_NEEDS_OPERATOR
    finally:
        stop.set()
        timetable.stop()
        _log.info("service stopped")


def _prepare(config: ServiceConfig, health: Health) -> bool:
    """Clean up in the store, waiting for it if it cannot be reached; says whether to search now.

    Raises:
        StoreError: The store cannot be used, and waiting would not change that.
    """

    def is_passing(error: Exception) -> bool:
        passing = isinstance(error, (StoreUnavailableError, StoreReadOnlyError, OSError))
        if passing:
            health.set("failing", str(error))
        return passing

    for attempt in stamina.retry_context(
        on=is_passing, attempts=None, timeout=None, wait_max=_MAX_BACKOFF_S
    ):
        with attempt:
            with Store.open(
                config.store_location, migrate=False, busy_timeout_s=STORE_TIMEOUT_S
            ) as store:
                interrupt_stale_runs(store)
                due = is_due(store, config.tune, utc_now())
    return due


def _why_blocked(config: ServiceConfig) -> str | None:
    """Why nothing may be searched with this configuration, if so."""
    if config.serving_engine is None or config.tune.traffic is not None:
        return None
    return (
        f"serving_engine = {config.serving_engine!r} and tune.traffic is not set: nothing found "
        "on the shipped workload is published for a serving engine: set tune.traffic to a JSONL "
        "file of its requests and restart"
    )


def _is_told_to_stop(timeout_s: float) -> bool:
    heard = signal.sigtimedwait(_STOP_SIGNALS, timeout_s)
    if heard is not None:
        _log.info("stopping", signal=signal.Signals(heard.si_signo).name)
    return heard is not None


def _in_background(work: Callable[[], bool]) -> Future[bool]:
    """Run in a thread that does not keep the process from ending."""
    future: Future[bool] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="prepare", daemon=True).start()
    return future

"""When the tuning job runs: APScheduler, set so that no run is lost and none overlaps."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

_log = structlog.get_logger()

_JOB = "tune"
_MAX_HOURS = 24 * 366
_JUMP_S = 5.0  # Far above what a time server's slewing moves the clock between two looks.


def parse_schedule(schedule: float | str) -> BaseTrigger:
    """The trigger of a schedule, counted from now.

    Args:
        schedule: Hours between runs, or a crontab expression in the machine's time zone.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(schedule, str):
        return _parse_crontab(schedule)
    if not math.isfinite(schedule) or not 0 < schedule <= _MAX_HOURS:
        raise ValueError(f"hours between runs must be above 0 and at most {_MAX_HOURS}")
    return IntervalTrigger(seconds=schedule * 3600, timezone=UTC)


class ClockWatch:
    """Notices that the clock was set back.

    Args:
        wall: Seconds of the clock that people set.
        monotonic: Seconds of one that nobody sets.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset = wall() - monotonic()

    def was_set_back(self) -> bool:
        """Whether it happened since the last call."""
        before, self._offset = self._offset, self._wall() - self._monotonic()
        return self._offset < before - _JUMP_S


class Timetable:
    """Runs one job by a schedule, in a thread of its own.

    A run that is late runs all the same, several missed ones run once, and a run that is due
    while another is going is left out.

    Args:
        schedule: As for `parse_schedule`.
        job: What to run. Whatever it raises is logged and ends this run only.
        clock: Tells when the schedule must be counted anew.
    """

    def __init__(
        self, schedule: float | str, job: Callable[[], None], clock: ClockWatch | None = None
    ) -> None:
        self._schedule = schedule
        self._job = job
        self._clock = ClockWatch() if clock is None else clock
        self._told_of_overlap = False
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_listener(self._tell_of_overlap, EVENT_JOB_MAX_INSTANCES)

    def start(self, *, run_now: bool) -> None:
        """Begin.

        Args:
            run_now: Whether the first run is due at once rather than by the schedule.
        """
        first = {"next_run_time": datetime.now(UTC)} if run_now else {}
        self._scheduler.add_job(self._run, parse_schedule(self._schedule), id=_JOB, **first)
        self._scheduler.start()

    def stop(self) -> None:
        """End, after the run that is going; without effect if it never began."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def next_run(self) -> datetime | None:
        """When the job runs next, in UTC; None before the start."""
        job = self._scheduler.get_job(_JOB)
        return None if job is None else job.next_run_time

    def check_clock(self) -> None:
        """Count the schedule from now if the clock was set back.

        The next run's time is one of the wall clock: after a jump back by an hour it would come
        an hour late, however short the interval. Call this every few seconds.
        """
        if self._clock.was_set_back() and self._scheduler.running:
            self._scheduler.reschedule_job(_JOB, trigger=parse_schedule(self._schedule))
            _log.warning("clock set back", next_run=str(self.next_run()))

    def _run(self) -> None:
        self._told_of_overlap = False
        self._job()

    def _tell_of_overlap(self, event: JobExecutionEvent) -> None:
        if not self._told_of_overlap:
            self._told_of_overlap = True
            _log.warning("due while a run is going: skipped until it ends")


def _parse_crontab(expression: str) -> CronTrigger:
    fields = expression.split()
    if len(fields) == 5 and re.search(r"\d", fields[4]):
        # APScheduler counts weekdays from Monday, crontab from Sunday.
        raise ValueError("write the days of the week as names, for example mon-fri")
    try:
        return CronTrigger.from_crontab(expression)
    except (ValueError, LookupError) as error:  # LookupError: an unknown local time zone.
        raise ValueError(
            f"neither hours between runs nor a crontab expression ({error}): "
            'write for example 24, or "0 3 * * *"'
        ) from error

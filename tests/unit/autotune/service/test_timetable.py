"""The timetable: nothing is lost, nothing overlaps, and the clock may be set back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest
from structlog.testing import capture_logs

from autotune.service.timetable import ClockWatch, Timetable, parse_schedule

HANG_GUARD_S = 60.0
TENTH_OF_A_SECOND = 0.1 / 3600
OVERLAP = "due while a run is going: skipped until it ends"


class Job:
    """A job that says when it runs and runs until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.running = 0
        self.most_running = 0
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def __call__(self) -> None:
        """Run once."""
        self.count += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.began.release()
        assert self.may_end.acquire(timeout=HANG_GUARD_S)
        self.running -= 1

    def await_start(self) -> None:
        """Wait for the next run to begin."""
        assert self.began.acquire(timeout=HANG_GUARD_S)

    def let_go(self, times: int = 1) -> None:
        """Let runs end."""
        self.may_end.release(times)


class Clock:
    """Wall time and monotonic time, moved by hand."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.monotonic = 50.0

    def watch(self) -> ClockWatch:
        """A watch on it."""
        return ClockWatch(lambda: self.wall, lambda: self.monotonic)

    def pass_time(self, seconds: float) -> None:
        """Let both go on."""
        self.wall += seconds
        self.monotonic += seconds


@contextmanager
def started(timetable: Timetable, job: Job, *, run_now: bool) -> Iterator[None]:
    """Start, and stop whatever happens."""
    timetable.start(run_now=run_now)
    try:
        yield
    finally:
        job.let_go(1000)
        timetable.stop()


def test_late_run_still_runs_once() -> None:
    """The loop was held up over several due times: one run, not none and not all (E1)."""
    job = Job()
    timetable = Timetable(TENTH_OF_A_SECOND, job)
    with started(timetable, job, run_now=False):
        timetable._scheduler.pause()
        held_up = datetime.now(UTC)
        due = timetable.next_run()
        assert due is not None
        while datetime.now(UTC) < due + timedelta(seconds=1.5):  # Over APScheduler's own limit.
            threading.Event().wait(0.1)
        timetable._scheduler.resume()
        job.await_start()
        following = timetable.next_run()
        assert following is not None
        assert following > held_up + timedelta(seconds=1.5)


def test_runs_never_overlap() -> None:
    """A run longer than its interval: one at a time, one line, and the next after its end (E4)."""
    job = Job()
    timetable = Timetable(TENTH_OF_A_SECOND, job)
    with capture_logs() as logs, started(timetable, job, run_now=True):
        job.await_start()
        skipped = threading.Event()
        seen: list[datetime | None] = []
        while len(set(seen)) < 4:  # Three due times have gone by.
            seen.append(timetable.next_run())
            skipped.wait(0.02)
        assert job.count == 1
        job.let_go()
        job.await_start()
        assert [entry["event"] for entry in logs].count(OVERLAP) == 1
    assert job.most_running == 1


def test_failing_job_does_not_end_the_timetable(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a run raises, the next one runs (E16)."""
    twice = threading.Semaphore(0)

    def fail() -> None:
        twice.release()
        raise RuntimeError("broken")

    timetable = Timetable(TENTH_OF_A_SECOND, fail)
    timetable.start(run_now=True)
    assert twice.acquire(timeout=HANG_GUARD_S)
    assert twice.acquire(timeout=HANG_GUARD_S)
    timetable.stop()
    assert "raised an exception" in caplog.text


def test_first_run_by_the_schedule() -> None:
    """Without need the first run waits for its time."""
    timetable = Timetable(2.0, lambda: None)
    before = datetime.now(UTC)
    timetable.start(run_now=False)
    next_run = timetable.next_run()
    timetable.stop()
    assert next_run is not None
    assert before + timedelta(hours=2) <= next_run <= datetime.now(UTC) + timedelta(hours=2)


def test_clock_set_back_delays_by_one_interval_at_most() -> None:
    """After a jump back by an hour the interval is counted anew from now (E7)."""
    clock = Clock()
    timetable = Timetable(2.0, lambda: None, clock.watch())
    timetable.start(run_now=False)
    before = timetable.next_run()
    clock.pass_time(1.0)
    timetable.check_clock()
    assert timetable.next_run() == before
    clock.wall -= 3600
    with capture_logs() as logs:
        timetable.check_clock()
    after = timetable.next_run()
    assert before is not None
    assert after is not None
    assert after > before
    assert after <= datetime.now(UTC) + timedelta(hours=2)
    assert logs[0]["event"] == "clock set back"
    timetable.stop()


def test_clock_watch() -> None:
    """Only jumps back count, and each of them once."""
    clock = Clock()
    watch = clock.watch()
    clock.pass_time(100.0)
    assert not watch.was_set_back()
    clock.wall += 3600  # Forward: runs come early, which harms nobody.
    assert not watch.was_set_back()
    clock.wall -= 0.5  # A time server at work.
    assert not watch.was_set_back()
    clock.wall -= 3600
    assert watch.was_set_back()
    clock.pass_time(1.0)
    assert not watch.was_set_back()


def test_stop_before_start() -> None:
    """A service that is told to stop while it waits for the store has nothing to stop."""
    timetable = Timetable(1.0, lambda: None)
    timetable.stop()
    assert timetable.next_run() is None


def test_crontab_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """03:30 is meant where the machine is."""
    tokyo = timezone(timedelta(hours=9))
    monkeypatch.setattr("apscheduler.triggers.cron.get_localzone", lambda: tokyo)
    after = datetime(2026, 6, 1, 0, 0, tzinfo=UTC)  # A Monday.
    fire = parse_schedule("30 3 * * sat").get_next_fire_time(None, after)
    assert fire is not None
    assert fire.astimezone(UTC) == datetime(2026, 6, 5, 18, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "schedule", [0.0, -1.0, 8785.0, float("nan"), float("inf"), "", "* * *", "61 * * * *", "@daily"]
)
def test_schedules_that_are_refused(schedule: float | str) -> None:
    """What can never be meant is refused."""
    with pytest.raises(ValueError, match="hours between runs"):
        parse_schedule(schedule)


@pytest.mark.parametrize("days", ["0", "1-5", "mon,3", "*/2"])
def test_numbered_weekdays_are_refused(days: str) -> None:
    """Crontab's Sunday would be taken for Monday."""
    with pytest.raises(ValueError, match="names, for example mon-fri"):
        parse_schedule(f"0 3 * * {days}")

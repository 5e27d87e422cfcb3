"""The service as a process: real signals, real workers, real crashes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from store.repository import Store
from store.schema import REVISIONS, move_to
from store.session import Database
from tests.support.service_process import ROOT, ServiceProcess, is_gone, with_search

EVERY_SECOND = f"schedule = {1 / 3600}\n"

Configure = Callable[[str], Path]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The service's state folder, not made yet."""
    return tmp_path / "state"


@pytest.fixture
def configure(tmp_path: Path, state: Path) -> Configure:
    """Writes a configuration with the state folder and more."""

    def write(more: str) -> Path:
        path = tmp_path / "spectuned.toml"
        path.write_text(f"state = {json.dumps(str(state))}\n{more}")
        return path

    return write


def statuses(state: Path) -> list[str]:
    """The runs' statuses, newest first."""
    with Store.open(state / "spectuned.db") as store:
        return [run.status for run in store.runs()]


def generations(state: Path) -> int:
    """How many generations were published."""
    with Store.open(state / "spectuned.db") as store:
        return len(store.history("scope"))


def test_publishes_at_the_first_start_and_waits_at_the_second(
    configure: Configure, state: Path
) -> None:
    """A worker's publication is in the store; a restart finds it fresh and waits for its time."""
    config = configure("[tune]\nseed = 5\n")
    with with_search(config, "publish") as service:
        service.wait_for("stage", text="Search")
        service.wait_for("note", text="a drafter was skipped")
        service.wait_for("worker stderr", text="printed by a library")
        service.wait_for("published", scope="scope", generation=1)
        service.wait_for("health", state="idle")
        assert service.stop() == 0
        assert "half of it" not in "".join(service.lines)
        assert json.loads(service.output()) == []  # Neither torch nor Optuna nor numpy.
    assert statuses(state) == ["done"]
    with with_search(config, "publish") as service:
        scheduled = service.wait_for("search scheduled")
        assert service.stop() == 0
    next_run = datetime.fromisoformat(scheduled["next_run"])
    assert next_run > datetime.now(UTC) + timedelta(hours=12)
    assert generations(state) == 1


def test_sigterm_during_a_search(configure: Configure, state: Path) -> None:
    """The run is marked as interrupted, no process is left, and the exit code is 0 (E9)."""
    with with_search(configure(""), "hang") as service:
        worker = service.wait_for("search started")["pid"]
        child = int(service.wait_for("note")["text"].removeprefix("child "))
        assert service.stop() == 0
    assert is_gone(worker)
    assert is_gone(child)
    assert statuses(state) == ["interrupted"]


def test_sigterm_during_a_publication(configure: Configure, state: Path) -> None:
    """Nothing is published, no lock is left, and the generation stays free (E10)."""
    with with_search(configure(""), "hang_in_publication") as service:
        service.wait_for("note", text="in the publication")
        assert service.stop() == 0
    assert (statuses(state), generations(state)) == (["interrupted"], 0)
    with Store.open(state / "spectuned.db", busy_timeout_s=0.0) as store:
        run_id = store.runs()[0].run_id
        assert store.publish("scope", run_id, lambda slot: b"document").generation == 1


def test_killed_worker_is_lost_alone(configure: Configure, state: Path) -> None:
    """After kill -9 of the worker its run is interrupted and the next one publishes (D3)."""
    with with_search(configure(EVERY_SECOND), "hang_once") as service:
        worker = service.wait_for("search started")["pid"]
        child = int(service.wait_for("note")["text"].removeprefix("child "))
        os.kill(worker, signal.SIGKILL)
        service.wait_for("runs interrupted")
        assert "memory" in service.wait_for("health", state="failing")["reason"]
        assert is_gone(child)
        service.wait_for("published", generation=1)
        assert service.stop() == 0
    assert statuses(state)[-2:] == ["done", "interrupted"]


def test_hanging_worker_is_ended(configure: Configure, state: Path) -> None:
    """A search that takes too long and is deaf to SIGTERM is killed; the service lives on."""
    config = configure("worker_timeout_s = 2\n")
    with with_search(config, "hang_deaf", grace_s=0.3) as service:
        worker = service.wait_for("search started")["pid"]
        reason = service.wait_for("health", state="failing")["reason"]
        assert "longer than worker_timeout_s = 2: raise it" in reason
        assert is_gone(worker)
        assert service.stop() == 0
    assert "running" not in statuses(state)


def test_killed_service_takes_its_worker_along(configure: Configure, state: Path) -> None:
    """The worker dies with its parent, and the log's lines are there (E13)."""
    with with_search(configure(""), "hang") as service:
        worker = service.wait_for("search started")["pid"]
        service.wait_for("note")
        service.send(signal.SIGKILL)
        assert service.end() == -signal.SIGKILL
        assert json.loads(service.lines[0])["event"] == "service started"
    assert is_gone(worker)
    with with_search(configure('serving_engine = "vllm"\n'), "publish") as service:
        service.wait_for("runs interrupted")
        assert service.stop() == 0
    assert statuses(state) == ["interrupted"]


def test_store_that_is_down_for_a_while(configure: Configure, state: Path) -> None:
    """A run without a store fails, and the next one after its return publishes (E16)."""
    with with_search(configure(EVERY_SECOND), "publish") as service:
        service.wait_for("published", generation=1)
        with closing(sqlite3.connect(state / "spectuned.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert "tried again" in service.wait_for("health", state="failing")["reason"]
        service.wait_for("published")
        assert service.stop() == 0


def test_store_that_is_out_of_reach_at_start(configure: Configure, state: Path) -> None:
    """The service waits for the store instead of leaving (E14)."""
    state.write_text("in the way")
    with with_search(configure(""), "publish") as service:
        assert str(state) in service.wait_for("health", state="failing")["reason"]
        service.wait_for("stamina.retry_scheduled")
        state.unlink()
        service.wait_for("published", generation=1)
        assert service.stop() == 0


def test_sigterm_while_the_store_is_waited_for(configure: Configure, state: Path) -> None:
    """Waiting for another process's lock does not keep the service from stopping."""
    Store.open(state / "spectuned.db").close()
    with (
        closing(sqlite3.connect(state / "spectuned.db", isolation_level=None)) as other,
        with_search(configure(""), "publish") as service,
    ):
        other.execute("BEGIN IMMEDIATE")
        assert "is locked" in service.wait_for("health", state="failing")["reason"]
        assert service.stop() == 0


def test_outdated_store_is_refused(configure: Configure, state: Path) -> None:
    """One line says the exact command, and the exit code says not to restart (D13)."""
    database = Database(state / "spectuned.db", read_only=False)
    with database.writing() as session:
        move_to(session.connection(), REVISIONS[0])
    database.close()
    with with_search(configure(""), "publish") as service:
        assert "`spectune store migrate`" in service.wait_for("store refused")["reason"]
        assert service.end() == 2


def test_start_script_refuses_a_wrong_configuration(configure: Configure) -> None:
    """daemon.py ends with 2 after one line that names file, key, value and remedy (E14)."""
    config = configure("schedul = 12\n")
    with _start_script(config) as service:
        assert service.end() == 2
        (line,) = service.lines
    assert json.loads(line)["reason"] == (
        f"{config}: schedul = 12: unknown: remove it, or did you mean schedule?"
    )


def test_start_script_does_not_publish_the_shipped_workload(
    configure: Configure, state: Path
) -> None:
    """With a serving engine and no traffic no search starts; the reason is one line (B9)."""
    with _start_script(configure(f'serving_engine = "vllm"\n{EVERY_SECOND}')) as service:
        reason = service.wait_for("health", state="blocked")["reason"]
        assert "set tune.traffic" in reason
        assert service.stop() == 0
        assert [json.loads(line)["event"] for line in service.lines] == [
            "service started",
            "health",
            "stopping",
            "service stopped",
        ]
    assert statuses(state) == []


def _start_script(config: Path) -> ServiceProcess:
    command = (sys.executable, str(ROOT / "daemon.py"))
    return ServiceProcess(command, {"SPECTUNED_CONFIG": str(config)})

"""The scheduled job, with shell scripts for workers."""

from __future__ import annotations

import json
import os
import site
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from autotune.service import tune_job
from autotune.service.config import ServiceConfig
from autotune.service.health import Health
from autotune.service.tune_job import TuneJob
from autotune.settings import TuneSettings
from store.repository import Store
from tests.contract.store_samples import make_run

PUBLISHED = '{"kind": "published", "scope": "s", "generation": 4}'


class Tried:
    """One run of the job: what was logged and which state it left."""

    def __init__(self, state: Path, script: str, **changes: Any) -> None:
        self.health = Health()
        self.stop = threading.Event()
        config = ServiceConfig(state=state, tune=TuneSettings(seed=9), **changes)
        job = TuneJob(
            config,
            command=("sh", "-c", script),
            grace_s=0.3,
            stop=self.stop,
            health=self.health,
        )
        with capture_logs() as self.logs:
            job()

    def events(self, event: str) -> list[dict[str, Any]]:
        """What was logged under a name."""
        return [dict(entry) for entry in self.logs if entry["event"] == event]


def test_request_on_standard_input(tmp_path: Path) -> None:
    """The worker is told settings, files, its limit and whose child it is."""
    Tried(tmp_path, f"cat > {tmp_path}/request", worker_memory_bytes=1 << 30)
    request = json.loads((tmp_path / "request").read_text())
    assert request.pop("settings")["seed"] == 9
    assert request == {
        "store": str(tmp_path / "spectuned.db"),
        "studies": str(tmp_path / "studies.db"),
        "memory_bytes": 1 << 30,
        "parent_pid": os.getpid(),
    }


def test_published(tmp_path: Path) -> None:
    """A publication is what counts, whatever the worker does afterwards."""
    tried = Tried(tmp_path, f"echo '{PUBLISHED}'; kill -SEGV $$")
    assert tried.health.state == "idle"
    (published,) = tried.events("published")
    assert (published["scope"], published["generation"]) == ("s", 4)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo \'{"kind": "unpublished"}\'', "no valid trial: what was published before stays"),
        ('echo \'{"kind": "failed", "text": "no GPU"}\'; exit 1', "no GPU"),
        ("exit 0", "the worker did not finish: exit code 0"),
        ("exit 3", "the worker did not finish: exit code 3"),
        (
            "kill -SEGV $$",
            "the worker did not finish: killed by signal 11 (Segmentation fault)",
        ),
        (
            "kill -KILL $$",
            "the worker did not finish: killed by signal 9 (Killed), as the kernel does when "
            "memory runs out",
        ),
    ],
)
def test_failures(tmp_path: Path, script: str, reason: str) -> None:
    """Each way to fail is told by its reason."""
    health = Tried(tmp_path, script).health
    assert (health.state, health.reason) == ("failing", reason)


def test_timeout(tmp_path: Path) -> None:
    """A search that takes too long is told with the key to raise."""
    health = Tried(tmp_path, "sleep 600", worker_timeout_s=0.2).health
    assert health.state == "failing"
    assert "longer than worker_timeout_s = 0.2: raise it" in health.reason


def test_missing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot be started is a failed run, not the end of the service."""
    monkeypatch.setenv("PATH", str(tmp_path))
    health = Tried(tmp_path, "true").health
    assert health.state == "failing"
    assert health.reason.endswith("'sh'; tried again at the next run")


def test_store_that_cannot_be_used(tmp_path: Path) -> None:
    """Without a store no worker starts, and the next run tries again (E16)."""
    (tmp_path / "spectuned.db").write_bytes(b"not a database" * 100)
    tried = Tried(tmp_path, "exit 3")
    assert tried.health.state == "failing"
    assert "is damaged or not an SQLite database" in tried.health.reason
    assert tried.events("search started") == []


def test_stale_runs_are_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that a dead process left are marked before and after the worker's own (D3)."""
    marked: list[int] = []
    monkeypatch.setattr(
        tune_job, "interrupt_stale_runs", lambda store: marked.append(len(store.runs()))
    )
    run = make_run()
    with Store.open(tmp_path / "spectuned.db") as store:
        store.begin_run(run)
    Tried(tmp_path, "exit 3")
    assert marked == [1, 1]


def test_progress_is_logged(tmp_path: Path) -> None:
    """Stages and notes become lines of the log; what is no report is counted, not repeated."""
    tried = Tried(
        tmp_path,
        """
        echo '{"kind": "stage", "text": "Record answers"}'
        echo '{"kind": "note", "text": "skipped"}'
        echo 'garbage'
        echo 'a warning' >&2
        """,
    )
    assert tried.events("stage")[0]["text"] == "Record answers"
    assert tried.events("note")[0]["text"] == "skipped"
    assert tried.events("worker sent a line that is no report")[0]["num_bytes"] == 7
    assert tried.events("worker stderr")[0]["text"] == "a warning"
    assert "garbage" not in str(tried.logs)


def test_log_is_not_flooded(tmp_path: Path) -> None:
    """Of endless warnings the first hundred are logged, and each of them shortened."""
    tried = Tried(tmp_path, "head -c 3000 /dev/zero | tr '\\0' x >&2; echo >&2; seq 1 500 >&2")
    lines = [entry["text"] for entry in tried.events("worker stderr")]
    assert len(lines) == 100
    assert len(lines[0]) == 500
    assert len(tried.events("worker stderr: further lines are left out")) == 1


def test_nothing_starts_after_the_stop(tmp_path: Path) -> None:
    """A run that comes up while the service stops is left out."""
    stop = threading.Event()
    stop.set()
    job = TuneJob(
        ServiceConfig(state=tmp_path),
        command=("sh", "-c", f"touch {tmp_path}/started"),
        grace_s=0.3,
        stop=stop,
        health=Health(),
    )
    job()
    assert list(tmp_path.iterdir()) == []


def test_worker_finds_our_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkout their folder is passed on, and what the operator has set stays behind it."""
    root = str(Path(tune_job.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    Tried(tmp_path, f'printf %s "$PYTHONPATH" > {tmp_path}/path')
    assert (tmp_path / "path").read_text() == f"{root}:/elsewhere"
    monkeypatch.setattr(site, "getsitepackages", lambda: [root])
    Tried(tmp_path, f'printf %s "$PYTHONPATH" > {tmp_path}/path')
    assert (tmp_path / "path").read_text() == "/elsewhere"

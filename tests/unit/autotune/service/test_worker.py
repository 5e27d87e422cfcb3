"""The worker process, with searches of `tests.support.fake_worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from autotune.service.protocol import WorkerRequest
from autotune.settings import TuneSettings
from store.repository import Store
from store.session import Database
from tests.support.fake_worker import REQUEST_TEXT
from tests.support.service_process import HANG_GUARD_S, ROOT


def request(tmp_path: Path, **changes: Any) -> WorkerRequest:
    """A request of this process."""
    values: dict[str, Any] = {
        "settings": TuneSettings(seed=3),
        "store": str(tmp_path / "store.db"),
        "studies": tmp_path / "studies.db",
        "memory_bytes": None,
        "parent_pid": os.getpid(),
    }
    return WorkerRequest(**values | changes)


def work(search: str, asked: WorkerRequest) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, reports and standard error of a worker."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.fake_worker", search],
        cwd=ROOT,
        input=asked.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
        start_new_session=True,
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_reports_of_a_search(tmp_path: Path) -> None:
    """Stages and notes as they come, no ticks, the publication last; prints are kept apart."""
    code, reports, stderr = work("publish", request(tmp_path))
    assert code == 0
    assert reports == [
        {"kind": "stage", "text": "Search"},
        {"kind": "note", "text": "a drafter was skipped"},
        {"kind": "published", "scope": "scope", "generation": 1},
    ]
    assert stderr == "printed by a library\n"


def test_search_gets_what_was_asked_for(tmp_path: Path) -> None:
    """Settings and files arrive as they were sent; without a valid trial that is the outcome."""
    code, reports, _ = work("show_environment", request(tmp_path))
    assert code == 0
    assert reports[0]["text"] == f"{tmp_path / 'studies.db'} 3 True"
    assert reports[1:] == [{"kind": "unpublished"}]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    """Our own errors are told in their own words, without a traceback."""
    code, reports, stderr = work("fail", request(tmp_path))
    assert (code, stderr) == (1, "")
    assert reports == [{"kind": "failed", "text": "requests.jsonl: does not exist"}]


def test_unexpected_error_is_told_by_its_place(tmp_path: Path) -> None:
    """The text of an error nobody thought of may quote a request, so nothing repeats it."""
    code, reports, stderr = work("fail_with_text", request(tmp_path))
    assert (code, stderr) == (1, "")
    (report,) = reports
    assert report["text"].startswith("unexpected ValueError at worker.py:")
    assert report["text"].endswith(" fail_with_text")
    assert REQUEST_TEXT not in report["text"]


def test_memory_limit(tmp_path: Path) -> None:
    """A search that takes more address space than it may is told which key to raise."""
    code, reports, _ = work("allocate", request(tmp_path, memory_bytes=2 << 30))
    assert code == 1
    assert reports[0]["text"].startswith("memory ran out: raise worker_memory_bytes")


def test_older_store_is_not_migrated(tmp_path: Path) -> None:
    """The worker changes tables as little as the service does."""
    database = Database(tmp_path / "store.db", read_only=False)
    with database.writing() as session:
        session.connection().exec_driver_sql("CREATE TABLE spectuned_version (version_num TEXT)")
        session.connection().exec_driver_sql("INSERT INTO spectuned_version VALUES ('0001')")
    database.close()
    code, reports, _ = work("publish", request(tmp_path))
    assert code == 1
    assert "`spectune store migrate`" in reports[0]["text"]


def test_crash_in_native_code_names_its_place(tmp_path: Path) -> None:
    """A segmentation fault leaves the Python frame on standard error."""
    code, reports, stderr = work("crash", request(tmp_path))
    assert (code, reports) == (-signal.SIGSEGV, [])
    assert "fake_worker.py" in stderr
    with Store.open(tmp_path / "store.db") as store:
        assert [run.status for run in store.runs()] == ["running"]


def test_orphan_does_not_begin(tmp_path: Path) -> None:
    """A worker whose service died before it was up does nothing."""
    code, reports, _ = work("publish", request(tmp_path, parent_pid=os.getpid() + 1))
    assert (code, reports) == (1, [])
    assert not (tmp_path / "store.db").exists()


def test_loads_nothing_heavy_before_the_search() -> None:
    """The memory limit is set before anything large is loaded."""
    code = (
        "import autotune.service.worker, sys\n"
        "sys.exit(bool({'torch', 'optuna', 'numpy'} & sys.modules.keys()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

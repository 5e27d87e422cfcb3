"""The service's log, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.service_process import ROOT

SCRIPT = """
import logging, os, signal, structlog
from autotune.service.logs import configure_logs
log = structlog.get_logger()
configure_logs()
log.debug("unseen")
log.info("seen", path="a\\nb\\u00e9", count=3)
logging.getLogger("apscheduler.scheduler").warning("skipped: %d", 1)
try:
    raise ValueError("text of a request")
except ValueError:
    logging.getLogger("apscheduler.executors.default").exception("Job %s raised", "tune")
logging.getLogger("other").warning("careful")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lines() -> None:
    """One JSON object per line, written at once, and nothing of an exception but its type (E13)."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.stdout == ""
    entries: list[dict[str, Any]] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert all(entry.pop("timestamp").endswith("Z") for entry in entries)
    assert entries == [
        {"event": "seen", "level": "info", "path": "a\nb\u00e9", "count": 3},
        {
            "event": "library message",
            "level": "error",
            "logger": "apscheduler.executors.default",
            "message": "Job tune raised",
            "exception": "ValueError",
        },
        {
            "event": "library message",
            "level": "warning",
            "logger": "other",
            "message": "careful",
        },
    ]

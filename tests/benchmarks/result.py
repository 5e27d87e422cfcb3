"""How every benchmark ends: a file under docs/benchmarks and one last line for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from autotune.device.detection import DeviceInfo

_ROOT = Path(__file__).resolve().parents[2]
# Asked when the benchmark starts: a commit made while it runs is not what it measured.
_COMMIT = subprocess.run(
    ["git", "describe", "--always", "--dirty"],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.strip()


def commit() -> str:
    """The commit that the benchmark began at."""
    return _COMMIT


def report(
    name: str, summary: Mapping[str, object], details: Mapping[str, object], device: DeviceInfo
) -> None:
    """Write `docs/benchmarks/<name>.json` and print the summary as the last line.

    Args:
        name: The benchmark.
        summary: The figures that are judged.
        details: Everything behind them, as JSON values.
        device: Where they were measured.
    """
    conditions = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _COMMIT,
        "device": device.name,
        "isa": sorted(device.isa),
    }
    path = _ROOT / "docs" / "benchmarks" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    document = {**conditions, "summary": summary, **details}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {path.relative_to(_ROOT)}\n")
    sys.stdout.write(f"RESULT {json.dumps(summary)}\n")

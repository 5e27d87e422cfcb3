"""The wheel holds our four packages, their data and the shipped drafters, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from autotune.shipped import shipped_drafters
from tests.support.service_process import ROOT

PACKAGES = ("autotune", "engine", "policies", "store")
DATA = {"autotune/workloads/default.jsonl", "assets/__init__.py"}
DRAFTER_FILES = ("README.md", "config.json", "model.safetensors")


def test_wheel_contents(tmp_path: Path) -> None:
    """Every module and every data file is in it; the start script and the tests are not."""
    source = tmp_path / "source"
    source.mkdir()
    # A copy: building in the checkout would leave its own folders there, and reuse old ones.
    for name in ("pyproject.toml", "README.md", "LICENSE", "daemon.py"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "assets", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", tmp_path, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    kernels = {
        str(path.relative_to(ROOT))
        for pattern in ("*.cpp", "*.h")
        for path in (ROOT / "engine").rglob(pattern)
    }
    drafters = {
        f"assets/drafters/{name}/{file}" for name in shipped_drafters() for file in DRAFTER_FILES
    }
    assert names == modules | kernels | DATA | drafters
    assert "store/migrations/versions/r0001_runs_and_evidence.py" in names

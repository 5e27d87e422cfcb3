"""Who may import whom (docs/structure.md): the contracts in pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.service_process import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def test_contracts_hold() -> None:
    """import-linter finds no breach."""
    ended = subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 broken" in ended.stdout

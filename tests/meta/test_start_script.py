"""daemon.py is a start script and nothing else, and the service's main process stays light."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.support.service_process import ROOT


def test_start_script_only_starts_the_service() -> None:
    """At most 25 lines, and nothing is imported but the service."""
    text = (ROOT / "daemon.py").read_text()
    assert len(text.splitlines()) <= 25
    imported: set[str | None] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"autotune.service.serve"}


def test_service_loads_nothing_heavy() -> None:
    """Importing the service works where torch, Optuna and numpy cannot be imported at all."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'optuna', 'numpy', 'triton']))\n"
        "import autotune.service.serve\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")

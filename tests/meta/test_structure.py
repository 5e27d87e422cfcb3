"""docs/structure.md is true, and every module says what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date() -> None:
    """One line per module; `python docs/make_structure.py` writes it."""
    command = [sys.executable, "docs/make_structure.py", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_no_file_is_long() -> None:
    """No module or test has more than 500 lines."""
    files = [
        f
        for top in ("policies", "engine", "store", "autotune", "tests")
        for f in (ROOT / top).rglob("*.py")
    ]
    assert files
    assert {f.name: n for f in files if (n := len(f.read_text().splitlines())) > 500} == {}


def test_every_module_has_a_docstring() -> None:
    """A module without a summary would be missing from the page."""
    modules = [
        m
        for top in ("policies", "engine", "store", "autotune")
        for m in (ROOT / top).rglob("*.py")
        if m.read_text().strip()
    ]
    bare = [m.name for m in modules if not ast.get_docstring(ast.parse(m.read_text()))]
    assert bare == []

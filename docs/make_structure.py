"""Write docs/structure.md: one line per module, taken from its docstring.

Run from the repository root: `python docs/make_structure.py`; `--check` only compares.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "structure.md"
PACKAGES = {
    "policies": "The vocabulary and pure decisions. Standard library only.",
    "engine": "The speculative engine: models, drafters, verification, replay, latency.",
    "store": "Ledger, publications and migrations.",
    "autotune": "Configuration, devices, traffic, tuning, service, reports and the command line.",
}
HEAD = """# Structure

Imports go one way: `daemon.py -> autotune -> engine | store -> policies`; `engine` and `store`
never import each other. One line per module, from its docstring (`python docs/make_structure.py`
writes this page).

A search, in the order of the calls: `autotune/cli/tune.py` -> `autotune/tuning/tune.py` ->
`session.py` (load, record) -> `acceptance.py` (replay) -> `costs.py` (time) -> `study.py` with
`paired.py` (search) -> `policies/choose.py` and `policies/decide.py` -> `publish.py` ->
`store/publications.py`.
"""


def summary(module: Path) -> str:
    """First line of a module's docstring; empty when it has none."""
    docstring = ast.get_docstring(ast.parse(module.read_text()))
    return docstring.splitlines()[0] if docstring else ""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for package, purpose in PACKAGES.items():
        parts.append(f"\n## {package}\n\n{purpose}\n\n| module | what |\n|---|---|")
        for module in sorted((ROOT / package).rglob("*.py")):
            if line := summary(module):
                parts.append(f"| `{module.relative_to(ROOT)}` | {line} |")
        parts[-1] += "\n"
    return "\n".join(parts)


def main() -> int:
    """Write the page, or compare it; 1 when it is out of date."""
    if "--check" in sys.argv:
        return int(TARGET.read_text() != render())
    TARGET.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())

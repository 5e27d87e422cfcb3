"""The simulator stays light enough for thousands of searches in worker processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tests.simulator.families import FAMILIES

HEAVY = ("torch", "optuna", "sqlalchemy", "scipy")


def test_nothing_heavy_is_imported() -> None:
    """Running every family needs numpy and the policies only."""
    code = (
        "import sys; import tests.simulator.run; from tests.simulator.families import FAMILIES; "
        "[family(0) for family in FAMILIES.values()]; "
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("family", FAMILIES)
def test_scenarios_travel_between_processes(family: str) -> None:
    """They are plain values."""
    scenario = FAMILIES[family](2)
    assert pickle.loads(pickle.dumps(scenario)) == scenario

"""Puts the stand-in for the NVML binding in front of the real one, here or in a child process."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

SCENARIOS = Path(__file__).parents[1] / "data" / "nvml"
_STAND_IN = Path(__file__).parent / "fake_nvml"


def environment(scenario: Path) -> dict[str, str]:
    """Environment of a child process that meets the scenario."""
    variables = dict(os.environ, FAKE_NVML_SCENARIO=str(scenario))
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    variables.update(json.loads(scenario.read_text(encoding="utf-8")).get("env", {}))
    path = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STAND_IN), path]))
    return variables


@contextmanager
def installed(scenario: Path) -> Iterator[ModuleType]:
    """The stand-in as module `pynvml` of this process; yields it."""
    real = sys.modules.pop("pynvml", None)
    variables = environment(scenario)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(_STAND_IN))
        for name in ("FAKE_NVML_SCENARIO", "CUDA_VISIBLE_DEVICES"):
            if name in variables:
                patch.setenv(name, variables[name])
            else:
                patch.delenv(name, raising=False)
        try:
            yield importlib.import_module("pynvml")
        finally:
            sys.modules.pop("pynvml", None)
            if real is not None:
                sys.modules["pynvml"] = real

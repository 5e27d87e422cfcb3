"""`spectune detect` and `spectune models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import exits
from autotune.device.detection import detect
from tests.support import nvml
from tests.tiny_llama import write_tiny_llama
from tests.unit.autotune.cli.conftest import Run


def test_detect_json(run: Run) -> None:
    """Every device with its fingerprint, and which one is chosen, as one document."""
    with nvml.installed(nvml.SCENARIOS / "C12_one_gpu_lost.json"):
        result = run("detect", "--json")
        detection = detect()
    found = json.loads(result.stdout)
    assert [device["name"] for device in found["devices"]] == [
        device.name for device in detection.devices
    ]
    assert found["devices"][found["chosen"]]["fingerprint"] == detection.chosen.fingerprint
    assert [gpu["index"] for gpu in found["lost"]] == [gpu.index for gpu in detection.lost]
    assert found["notes"] == list(detection.notes)


def test_detect_table(run: Run) -> None:
    """The chosen device carries a mark, lost ones and absent figures are told."""
    with nvml.installed(nvml.SCENARIOS / "C13_no_power_reading.json"):
        text = run("detect").stdout
        chosen = detect().chosen
    marked = [line for line in text.splitlines() if line.startswith(" > ")]
    assert len(marked) == 1
    assert chosen.name in marked[0]


def test_detect_without_a_driver(run: Run) -> None:
    """`auto` goes on with the CPU; a demanded GPU is one line and exit code 2 (bug report C15)."""
    with nvml.installed(nvml.SCENARIOS / "C15_no_library.json"):
        found = json.loads(run("detect", "--json").stdout)
        refused = run("detect", "--device", "cuda")
    assert [device["kind"] for device in found["devices"]] == ["cpu"]
    assert refused.exit_code == exits.BAD_INPUT
    assert refused.stderr.startswith("spectune: device = cuda: no NVIDIA GPU")
    assert refused.stderr.count("\n") == 1


def test_detect_cpu(run: Run) -> None:
    """`cpu` tells about the CPU alone."""
    found = json.loads(run("detect", "--device", "cpu", "--json").stdout)
    assert [device["kind"] for device in found["devices"]] == ["cpu"]
    assert found["notes"] == []


def test_models_list(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the cache with its fingerprint; what cannot be read is said, not hidden."""
    monkeypatch.setenv("SPECTUNED_CACHE", str(tmp_path))
    assert json.loads(run("models", "list", "--json").stdout) == []
    assert "No models in the cache" in run("models", "list").stdout
    write_tiny_llama(tmp_path / "models" / "tiny")
    (tmp_path / "models" / "broken").mkdir()
    broken, tiny = json.loads(run("models", "list", "--json").stdout)
    assert (tiny["name"], tiny["path"]) == ("tiny", str(tmp_path / "models" / "tiny"))
    assert len(tiny["fingerprint"]) == 64
    assert broken["fingerprint"] is None
    text = run("models", "list").stdout
    assert tiny["fingerprint"][:16] in text
    assert "cannot be read" in text


def test_models_fetch(run: Run, tmp_path: Path) -> None:
    """The folder of a model is printed alone, and a name that means nothing is refused."""
    write_tiny_llama(tmp_path / "tiny")
    result = run("models", "fetch", str(tmp_path / "tiny"))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'tiny'}\n")
    refused = run("models", "fetch", "no-such-model")
    assert refused.exit_code == exits.BAD_INPUT
    assert refused.stderr.startswith("spectune: model 'no-such-model': no such folder")

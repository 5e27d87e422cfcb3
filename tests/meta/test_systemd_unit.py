"""The systemd unit keeps what the service's code relies on."""

from __future__ import annotations

from collections import defaultdict

import pytest

from autotune.service.config import ServiceConfig
from autotune.service.serve import EXIT_NEEDS_OPERATOR, GRACE_S
from tests.support.service_process import ROOT

UNIT = ROOT / "deploy" / "spectuned.service"


@pytest.fixture
def unit() -> dict[str, list[str]]:
    """Every value of every key, as `Section.Key`."""
    values: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[f"{section}.{key}"].append(value)
    return values


def test_starts_the_command(unit: dict[str, list[str]]) -> None:
    """The installed command is started, as an account without rights."""
    (command,) = unit["Service.ExecStart"]
    assert command.endswith("/spectune daemon")
    assert unit["Service.Type"] == ["exec"]
    assert unit["Service.User"] == ["spectuned"]
    assert unit["Service.NoNewPrivileges"] == ["yes"]
    assert unit["Service.CapabilityBoundingSet"] == [""]


def test_stop_fits_the_grace_time(unit: dict[str, list[str]]) -> None:
    """Only the service is told to stop, and it has time to end its worker (E9)."""
    assert unit["Service.KillMode"] == ["mixed"]
    assert float(unit["Service.TimeoutStopSec"][0]) >= GRACE_S + 2.0


def test_restarts_unless_it_cannot_help(unit: dict[str, list[str]]) -> None:
    """A crash is followed by a restart without end, a wrong configuration by none (E14)."""
    assert unit["Service.Restart"] == ["on-failure"]
    assert unit["Service.RestartPreventExitStatus"] == [str(EXIT_NEEDS_OPERATOR)]
    assert unit["Unit.StartLimitIntervalSec"] == ["0"]
    assert unit["Service.OOMPolicy"] == ["continue"]


def test_kernels_can_be_compiled(unit: dict[str, list[str]]) -> None:
    """Nothing in the unit keeps a JIT or a GPU from working."""
    for key in ("MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "ProtectClock"):
        assert f"Service.{key}" not in unit


def test_folders_are_the_configured_ones(
    unit: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state lies where the unit makes a folder for it that may be written."""
    variables = dict(
        pair.split("=") for line in unit["Service.Environment"] for pair in line.split()
    )
    monkeypatch.setenv("SPECTUNED_STATE", variables["SPECTUNED_STATE"])
    (folder,) = unit["Service.StateDirectory"]
    assert str(ServiceConfig().state) == f"/var/lib/{folder}"
    (folder,) = unit["Service.CacheDirectory"]
    assert variables["SPECTUNED_CACHE"] == f"/var/cache/{folder}"

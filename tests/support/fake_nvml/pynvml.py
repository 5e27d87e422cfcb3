"""Stand-in for the NVML binding, first on the path of a test and driven by a scenario file.

`FAKE_NVML_SCENARIO` names the file. Its keys: `devices`, `driver`, `strings_as_bytes`,
`init_error`, `missing_functions`. Keys of a device: `name`, `uuid`, `memory`,
`compute_capability`, `power_limit_mw`, `mig_mode`, `mig_devices`, `lost`. A value
`{"error": NAME}` raises that error. Queries that are not modelled are "not supported".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

NVML_DEVICE_MIG_ENABLE = 1
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

_CODES = {
    "Uninitialized": NVML_ERROR_UNINITIALIZED,
    "InvalidArgument": 2,
    "NotSupported": 3,
    "NoPermission": NVML_ERROR_NO_PERMISSION,
    "NotFound": 6,
    "DriverNotLoaded": NVML_ERROR_DRIVER_NOT_LOADED,
    "LibraryNotFound": NVML_ERROR_LIBRARY_NOT_FOUND,
    "FunctionNotFound": 13,
    "GpuIsLost": NVML_ERROR_GPU_IS_LOST,
    "ResetRequired": NVML_ERROR_RESET_REQUIRED,
    "LibRmVersionMismatch": NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    "Unknown": 999,
}

sessions = 0
"""Calls of `nvmlInit` without their `nvmlShutdown`."""


class NVMLError(Exception):
    """As the binding's: `value` is the code."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = _CODES[name]


class _Handle(NamedTuple):
    gpu: int
    mig: int | None = None


def _scenario() -> dict[str, Any]:
    text = Path(os.environ["FAKE_NVML_SCENARIO"]).read_text(encoding="utf-8")
    scenario: dict[str, Any] = json.loads(text)
    return scenario


def _enter(function: str) -> dict[str, Any]:
    if not sessions:
        raise NVMLError("Uninitialized")
    scenario = _scenario()
    if function in scenario.get("missing_functions", ()):
        raise NVMLError("FunctionNotFound")
    return scenario


def _value(value: Any) -> Any:
    if isinstance(value, dict) and "error" in value:
        if value["error"] == "UnicodeDecodeError":
            raise UnicodeDecodeError("utf-8", b"\xf8", 0, 1, "invalid start byte")
        raise NVMLError(value["error"])
    return value


def _query(function: str, handle: _Handle, key: str) -> Any:
    device = _enter(function)["devices"][handle.gpu]
    if device.get("lost"):
        raise NVMLError("GpuIsLost")
    if handle.mig is not None:
        device = device["mig_devices"][handle.mig]
    if key not in device:
        raise NVMLError("NotSupported")
    return _value(device[key])


def _text(value: str) -> str | bytes:
    return value.encode() if _scenario().get("strings_as_bytes") else value


def nvmlInit() -> None:
    """Opens the library, or raises the scenario's `init_error`."""
    global sessions
    if error := _scenario().get("init_error"):
        raise NVMLError(error)
    sessions += 1


def nvmlShutdown() -> None:
    """Closes the library."""
    global sessions
    _enter("nvmlShutdown")
    sessions -= 1


def nvmlSystemGetDriverVersion() -> str | bytes:
    """Driver version."""
    return _text(_value(_enter("nvmlSystemGetDriverVersion").get("driver", "580.00")))


def nvmlDeviceGetCount() -> int:
    """Devices in the scenario, lost ones included."""
    return len(_enter("nvmlDeviceGetCount")["devices"])


def nvmlDeviceGetHandleByIndex(index: int) -> _Handle:
    """Handle of a GPU."""
    if _enter("nvmlDeviceGetHandleByIndex")["devices"][index].get("lost"):
        raise NVMLError("GpuIsLost")
    return _Handle(index)


def nvmlDeviceGetName(handle: _Handle) -> str | bytes:
    """Product name."""
    return _text(_query("nvmlDeviceGetName", handle, "name"))


def nvmlDeviceGetUUID(handle: _Handle) -> str | bytes:
    """Id of the GPU or slice."""
    return _text(_query("nvmlDeviceGetUUID", handle, "uuid"))


def nvmlDeviceGetMemoryInfo(handle: _Handle) -> SimpleNamespace:
    """Total, used and free bytes."""
    return SimpleNamespace(**_query("nvmlDeviceGetMemoryInfo", handle, "memory"))


def nvmlDeviceGetCudaComputeCapability(handle: _Handle) -> tuple[int, int]:
    """Major and minor number."""
    major, minor = _query("nvmlDeviceGetCudaComputeCapability", handle, "compute_capability")
    return major, minor


def nvmlDeviceGetPowerManagementLimit(handle: _Handle) -> int:
    """Configured limit in milliwatts."""
    limit: int = _query("nvmlDeviceGetPowerManagementLimit", handle, "power_limit_mw")
    return limit


def nvmlDeviceGetMigMode(handle: _Handle) -> list[int]:
    """Current and pending mode."""
    return list(_query("nvmlDeviceGetMigMode", handle, "mig_mode"))


def nvmlDeviceGetMaxMigDeviceCount(handle: _Handle) -> int:
    """Slots for slices."""
    device = _enter("nvmlDeviceGetMaxMigDeviceCount")["devices"][handle.gpu]
    return 7 if "mig_mode" in device else 0


def nvmlDeviceGetMigDeviceHandleByIndex(handle: _Handle, index: int) -> _Handle:
    """Handle of a slice."""
    device = _enter("nvmlDeviceGetMigDeviceHandleByIndex")["devices"][handle.gpu]
    if index >= len(device.get("mig_devices", ())):
        raise NVMLError("NotFound")
    return _Handle(handle.gpu, index)


def __getattr__(name: str) -> Callable[..., None]:
    """Any other query of the binding."""
    if not name.startswith("nvmlDeviceGet"):
        raise AttributeError(name)

    def unsupported(*_: object) -> None:
        _enter(name)
        raise NVMLError("NotSupported")

    return unsupported

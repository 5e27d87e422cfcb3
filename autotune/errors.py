"""Errors of the tuner. Each is one line that names the thing, its value and the remedy.

AutotuneError                 anything the tuner reports instead of a traceback
├── ConfigError               an option or a configuration file
├── TrafficError              a file of requests, or the workload built from one
└── DeviceError               no device as demanded
    └── GpuUnavailableError   the driver library cannot be asked about GPUs at all
"""

from __future__ import annotations

from typing import ClassVar


class AutotuneError(Exception):
    """Base of the tree. The command line prints it and leaves with `exit_code`."""

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        """The message on one line, also where a path or a name in it holds a line break."""
        return " ".join(super().__str__().split())


class ConfigError(AutotuneError):
    """An option or a configuration file cannot be used."""


class TrafficError(AutotuneError):
    """A file of requests cannot be used. Never holds text of a request."""


class DeviceError(AutotuneError):
    """The device that was asked for is not there."""


class GpuUnavailableError(DeviceError):
    """The driver library is missing or does not answer, so no GPU can be listed."""

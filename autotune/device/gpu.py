"""GPUs as the NVIDIA driver lists them: the reader protocol and its NVML implementation.

The only place that imports `pynvml` (package nvidia-ml-py), and only when a GPU is asked for.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.errors import GpuUnavailableError

_MIG_PROFILE = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")
_UNKNOWN_PROFILE = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One usable GPU or one slice of a partitioned GPU; None where the driver does not tell.

    Attributes:
        index: Number of the physical GPU in PCI order, as `nvidia-smi` shows it.
        name: Product name, for a slice with its profile.
        uuid: The driver's id of the GPU or slice.
        parent_uuid: For a slice, the id of its GPU.
        compute_capability: For example `9.0`.
        memory_bytes: Total memory.
        mig_profile: For a slice, for example `2g.20gb`; None for a whole GPU.
        power_limit_watts: Configured limit, of the whole GPU also for a slice.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    mig_profile: str | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGpu:
    """A GPU that the driver counts and that cannot be used.

    Attributes:
        index: As in `GpuFacts`.
        reason: What the driver says about it.
    """

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """All GPUs of the machine, before `CUDA_VISIBLE_DEVICES` is applied.

    Attributes:
        driver: Driver version, None if unknown.
        gpus: Usable GPUs and slices, by index.
        lost: The others.
    """

    driver: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    lost: tuple[LostGpu, ...] = ()


class GpuReader(Protocol):
    """Whatever can list GPUs."""

    def read(self) -> GpuInventory:
        """Lists the GPUs.

        Raises:
            GpuUnavailableError: The driver cannot be asked.
        """
        ...


class NvmlReader:
    """Reads through NVML, the management library that comes with the driver."""

    def read(self) -> GpuInventory:
        """Lists the GPUs; any single figure may be missing without harm to the others.

        Raises:
            GpuUnavailableError: Binding or library are missing, or the driver does not answer.
        """
        nvml = _import_binding()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise GpuUnavailableError(_init_problem(nvml, error)) from error
        try:
            return _Session(nvml).inventory()
        except nvml.NVMLError as error:
            raise GpuUnavailableError(f"the NVIDIA driver does not answer ({error})") from error
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def _import_binding() -> Any:  # the binding has no type information
    with warnings.catch_warnings():
        # A deprecated package of the same import name warns on import; stdout and logs stay clean.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return importlib.import_module("pynvml")
        except ImportError as error:
            raise GpuUnavailableError("the Python package nvidia-ml-py is not installed") from error


def _init_problem(nvml: Any, error: Exception) -> str:
    known = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the NVIDIA driver library is not installed",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        nvml.NVML_ERROR_NO_PERMISSION: "the NVIDIA device files may not be opened",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "driver and driver library have different versions, reboot after a driver update"
        ),
    }
    return known.get(getattr(error, "value", None), f"the NVIDIA driver does not start ({error})")


class _Session:
    """Queries between one `nvmlInit` and its `nvmlShutdown`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        # A GPU in one of these states fails every further call: give it up, not the figure.
        self._fatal = (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_UNINITIALIZED,
        )

    def inventory(self) -> GpuInventory:
        gpus: list[GpuFacts] = []
        lost: list[LostGpu] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                found = self._gpu_or_slices(index)
            except self._nvml.NVMLError as error:
                lost.append(LostGpu(index=index, reason=str(error)))
                continue
            if not found:
                lost.append(LostGpu(index=index, reason="partitioned (MIG), but without a slice"))
            gpus += found
        driver = self._text(self._nvml.nvmlSystemGetDriverVersion)
        return GpuInventory(driver=driver, gpus=tuple(gpus), lost=tuple(lost))

    def _gpu_or_slices(self, index: int) -> list[GpuFacts]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        mode = self._optional(self._nvml.nvmlDeviceGetMigMode, handle)
        partitioned = mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE
        whole = GpuFacts(
            index=index,
            name=self._text(self._nvml.nvmlDeviceGetName, handle),
            uuid=self._text(self._nvml.nvmlDeviceGetUUID, handle),
            compute_capability=self._capability(handle),
            memory_bytes=self._memory_bytes(handle),
            power_limit_watts=self._power_limit_watts(handle),
        )
        # Inside a container the mode may be denied while the slice is there to be found.
        slices = [
            self._slice(whole, slice_handle)
            for slice_handle in (self._slice_handles(handle) if partitioned or mode is None else ())
        ]
        # Once partitioned, a GPU runs nothing as a whole.
        return slices if slices or partitioned else [whole]

    def _slice_handles(self, handle: object) -> Iterator[object]:
        count = self._optional(self._nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        for position in range(count):
            found = self._optional(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
            if found is not None:
                yield found

    def _slice(self, whole: GpuFacts, handle: object) -> GpuFacts:
        name = self._text(self._nvml.nvmlDeviceGetName, handle) or whole.name
        profile = _MIG_PROFILE.search(name or "")
        return GpuFacts(
            index=whole.index,
            name=name,
            uuid=self._text(self._nvml.nvmlDeviceGetUUID, handle),
            parent_uuid=whole.uuid,
            compute_capability=self._capability(handle) or whole.compute_capability,
            memory_bytes=self._memory_bytes(handle),
            mig_profile=profile.group(1) if profile else _UNKNOWN_PROFILE,
            power_limit_watts=whole.power_limit_watts,
        )

    def _capability(self, handle: object) -> str | None:
        found = self._optional(self._nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return None if found is None else f"{found[0]}.{found[1]}"

    def _memory_bytes(self, handle: object) -> int | None:
        found = self._optional(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if found is None else int(found.total)

    def _power_limit_watts(self, handle: object) -> float | None:
        milliwatts = self._optional(self._nvml.nvmlDeviceGetPowerManagementLimit, handle)
        return None if milliwatts is None else milliwatts / 1000

    def _text(self, query: Callable[..., Any], *args: object) -> str | None:
        found = self._optional(query, *args)
        # Bindings differ between versions in whether they give bytes or text.
        text = found.decode(errors="replace") if isinstance(found, bytes) else found
        return str(text).strip() if text else None

    def _optional(self, query: Callable[..., Any], *args: object) -> Any:
        """The answer, or None where this figure is not supported, denied or unreadable."""
        try:
            return query(*args)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in self._fatal:
                raise
            return None
        except UnicodeDecodeError:
            return None

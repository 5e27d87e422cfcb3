"""Finds the device to tune on and describes it by what decides its speed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.device.cpu import CGROUP_ROOT, PROC_ROOT, read_cpu
from autotune.device.gpu import GpuFacts, GpuReader, LostGpu, NvmlReader
from autotune.device.visible import VARIABLE, select_visible
from autotune.document import Device
from autotune.errors import DeviceError, GpuUnavailableError

DeviceRequest = Literal["auto", "cpu", "cuda"]

_GIB = 1 << 30
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device; None where a figure is not known, never a guess.

    Attributes:
        kind: `cuda` or `cpu`.
        name: Product name.
        index: Number of the physical GPU in PCI order; None for a CPU.
        uuid: The driver's id of the GPU or slice.
        compute_capability: For example `9.0`; None for a CPU.
        memory_bytes: Total memory, for a CPU within the container's limit.
        mig_profile: For a slice of a partitioned GPU, for example `2g.20gb`.
        power_limit_watts: Configured limit of the GPU.
        driver: Version of the GPU driver.
        cores: Logical CPU cores this process may use; None for a GPU.
        isa: Instruction sets of a CPU that matter to matrix kernels.
    """

    kind: Literal["cuda", "cpu"]
    name: str
    index: int | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    mig_profile: str | None = None
    power_limit_watts: float | None = None
    driver: str | None = None
    cores: int | None = None
    isa: tuple[str, ...] = ()

    @property
    def multiplies_bfloat16(self) -> bool:
        """The hardware does it; elsewhere it is emulated, and slower than float32."""
        return self.kind == "cuda" or bool({"amx_bf16", "avx512_bf16"} & set(self.isa))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what decides the speed: equal for two devices of the same make and set-up.

        Index and id do not count. The memory of a CPU counts in whole GiB, since the kernel's
        own share changes from boot to boot.
        """
        memory = self.memory_bytes
        if self.kind == "cpu" and memory is not None:
            memory = round(memory / _GIB) * _GIB
        facts = {
            "kind": self.kind,
            "name": self.name,
            "compute_capability": self.compute_capability,
            "memory_bytes": memory,
            "mig_profile": self.mig_profile,
            "power_limit_watts": self.power_limit_watts,
            "driver": self.driver,
            "cores": self.cores,
            "isa": self.isa,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What was found.

    Attributes:
        devices: Everything that could be used: visible GPUs in the framework's order, then the
            CPU. The CPU alone where only it was asked for.
        lost: GPUs that the driver counts and that cannot be used.
        chosen: The device to tune on.
        notes: What the operator should know, one line each.
    """

    devices: tuple[DeviceInfo, ...]
    lost: tuple[LostGpu, ...]
    chosen: DeviceInfo
    notes: tuple[str, ...]


def detect(
    requested: DeviceRequest = "auto",
    reader: GpuReader | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    proc_root: Path = PROC_ROOT,
    cgroup_root: Path = CGROUP_ROOT,
) -> Detection:
    """Finds the devices and chooses one.

    Args:
        requested: `auto` takes the first visible GPU, else the CPU; `cpu` asks no driver; `cuda`
            insists on a GPU.
        reader: Lists the GPUs; NVML if None.
        environ: Environment to read `CUDA_VISIBLE_DEVICES` from; the process's own if None.
        proc_root: Where `/proc` is.
        cgroup_root: Where the control groups are mounted.

    Raises:
        DeviceError: `cuda` was asked for and there is no usable GPU, or the request is unknown.
    """
    if requested not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device = {requested}: must be auto, cpu or cuda")
    cpu = _cpu(proc_root, cgroup_root)
    if requested == "cpu":
        return Detection(devices=(cpu,), lost=(), chosen=cpu, notes=())
    environ = os.environ if environ is None else environ
    try:
        inventory = (reader or NvmlReader()).read()
    except GpuUnavailableError as error:
        return _without_gpu(requested, cpu, (), [f"no NVIDIA GPU: {error}"])
    visible = select_visible(inventory, environ.get(VARIABLE))
    gpus = [_gpu(facts, inventory.driver) for facts in visible.gpus]
    notes = [f"GPU {gpu.index} cannot be used: {gpu.reason}" for gpu in inventory.lost]
    notes += visible.notes
    if not gpus:
        return _without_gpu(
            requested, cpu, inventory.lost, notes or ["the NVIDIA driver lists no GPU"]
        )
    notes += _remarks(gpus, environ)
    return Detection(devices=(*gpus, cpu), lost=inventory.lost, chosen=gpus[0], notes=tuple(notes))


def to_document(info: DeviceInfo) -> Device:
    """The device as it appears in a published document; index and id stay on the machine."""
    return Device(
        kind=info.kind,
        name=info.name,
        compute_capability=info.compute_capability,
        memory_bytes=info.memory_bytes,
        mig_profile=info.mig_profile,
        power_limit_watts=info.power_limit_watts,
        driver=info.driver,
        cores=info.cores,
        isa=info.isa,
        fingerprint=info.fingerprint,
    )


def _without_gpu(
    requested: DeviceRequest, cpu: DeviceInfo, lost: tuple[LostGpu, ...], notes: Sequence[str]
) -> Detection:
    if requested == "cuda":
        raise DeviceError(
            f"device = cuda: {', '.join(notes)}; make a GPU available or set device = cpu"
        )
    return Detection(devices=(cpu,), lost=lost, chosen=cpu, notes=(*notes, "going on with the CPU"))


def _remarks(gpus: Sequence[DeviceInfo], environ: Mapping[str, str]) -> list[str]:
    remarks = []
    if gpus[0].memory_bytes is None:
        remarks.append(f"{gpus[0].name}: the driver does not report its memory, taken as unknown")
    if len({gpu.name for gpu in gpus}) > 1 and environ.get(_ORDER_VARIABLE) != "PCI_BUS_ID":
        # By default CUDA counts the fastest GPU first, the driver counts by PCI bus.
        remarks.append(
            f"GPUs of different kinds: set {_ORDER_VARIABLE}=PCI_BUS_ID so that an index means "
            "the same GPU here and in the framework"
        )
    return remarks


def _gpu(facts: GpuFacts, driver: str | None) -> DeviceInfo:
    return DeviceInfo(
        kind="cuda",
        name=facts.name or "unknown NVIDIA GPU",
        index=facts.index,
        uuid=facts.uuid,
        compute_capability=facts.compute_capability,
        memory_bytes=facts.memory_bytes,
        mig_profile=facts.mig_profile,
        power_limit_watts=facts.power_limit_watts,
        driver=driver,
    )


def _cpu(proc_root: Path, cgroup_root: Path) -> DeviceInfo:
    facts = read_cpu(proc_root, cgroup_root)
    return DeviceInfo(
        kind="cpu",
        name=facts.name,
        memory_bytes=facts.memory_bytes,
        cores=facts.cores,
        isa=facts.isa,
    )

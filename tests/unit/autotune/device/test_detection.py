"""Device detection: GPU oddities from public bug reports, the CPU's facts, and the choice."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import gpu as gpu_module
from autotune.device.detection import Detection, DeviceInfo, detect, to_document
from autotune.device.gpu import GpuFacts, GpuInventory, LostGpu, NvmlReader
from autotune.errors import DeviceError, GpuUnavailableError
from tests.support import nvml

GIB = 1 << 30
H100 = GpuFacts(index=0, name="H100", uuid="GPU-aa11", memory_bytes=80 * GIB)
L4 = GpuFacts(index=1, name="L4", uuid="GPU-ab22", memory_bytes=24 * GIB)


class ListedGpus:
    """A reader that lists what it was given."""

    def __init__(self, *gpus: GpuFacts, lost: tuple[LostGpu, ...] = ()) -> None:
        self._inventory = GpuInventory(driver="580.00", gpus=gpus, lost=lost)

    def read(self) -> GpuInventory:
        """The list."""
        return self._inventory


def _case(name: str) -> Detection:
    with nvml.installed(nvml.SCENARIOS / f"{name}.json"):
        return detect()


def _scenario(tmp_path: Path, name: str, **changes: object) -> Path:
    scenario = json.loads((nvml.SCENARIOS / f"{name}.json").read_text(encoding="utf-8"))
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**scenario, **changes}), encoding="utf-8")
    return path


def test_healthy_gpu() -> None:
    """C0: name, memory, capability and driver arrive, the GPU is chosen, the CPU is listed too."""
    found = _case("C0_control")
    assert found.chosen == DeviceInfo(
        kind="cuda",
        name="NVIDIA H100 80GB HBM3",
        index=0,
        uuid="GPU-00000000-0000-0000-0000-0000000000aa",
        compute_capability="9.0",
        memory_bytes=80 * GIB,
        driver="580.00",
    )
    assert [device.kind for device in found.devices] == ["cuda", "cpu"]
    assert found.notes == ()


def test_unified_memory() -> None:
    """C1: a GPU whose memory is not reported is used, with its memory unknown and a note."""
    found = _case("C1_unified_memory")
    assert found.chosen.name == "NVIDIA GB10"
    assert found.chosen.memory_bytes is None
    assert "memory" in found.notes[0]


def test_slice_with_its_parent_denied() -> None:
    """C3: the slice is the device, with its own memory and its profile in the key."""
    found = _case("C3_mig_no_permission")
    assert [device.kind for device in found.devices] == ["cuda", "cpu"]
    assert found.chosen.name == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
    assert found.chosen.memory_bytes == 20 * GIB
    assert found.chosen.mig_profile == "2g.20gb"
    assert found.chosen.compute_capability == "9.0"
    assert to_document(found.chosen).mig_profile == "2g.20gb"


def test_slice_named_by_the_environment() -> None:
    """C5: the id of a slice in `CUDA_VISIBLE_DEVICES` is looked up, not read as a number."""
    found = _case("C5_visible_mig_uuid")
    assert found.chosen.uuid == "MIG-22222222-2222-2222-2222-2222222222cc"
    assert found.notes == ()


def test_names_as_bytes() -> None:
    """C8: bytes and text give the same key."""
    chosen = _case("C8_name_as_bytes").chosen
    assert (chosen.name, chosen.driver) == ("NVIDIA L4", "580.00")
    assert chosen == _case("C13_no_power_reading").chosen


def test_one_gpu_lost() -> None:
    """C12: the healthy GPUs keep their indices and the lost one is reported."""
    found = _case("C12_one_gpu_lost")
    assert [device.index for device in found.devices] == [0, 2, None]
    assert [gpu.index for gpu in found.lost] == [1]
    assert found.notes[0].startswith("GPU 1 cannot be used: ")


def test_power_limit_is_optional(tmp_path: Path) -> None:
    """C13: a missing power figure is absent and changes nothing else; a present one is in watts."""
    without = _case("C13_no_power_reading").chosen
    assert without.power_limit_watts is None
    gpu = json.loads((nvml.SCENARIOS / "C13_no_power_reading.json").read_text())["devices"][0]
    path = _scenario(tmp_path, "C13_no_power_reading", devices=[{**gpu, "power_limit_mw": 72500}])
    with nvml.installed(path):
        assert detect().chosen == replace(without, power_limit_watts=72.5)


def test_no_library_goes_on_with_the_cpu() -> None:
    """C15: one clear line, and the CPU is chosen."""
    found = _case("C15_no_library")
    assert found.chosen.kind == "cpu"
    assert found.notes == (
        "no NVIDIA GPU: the NVIDIA driver library is not installed",
        "going on with the CPU",
    )


def test_no_library_with_a_gpu_demanded() -> None:
    """C15: a demanded GPU that is not there is one line with the remedy, and exit code 2."""
    scenario = nvml.SCENARIOS / "C15_no_library.json"
    with nvml.installed(scenario), pytest.raises(DeviceError) as caught:
        detect("cuda")
    assert str(caught.value) == (
        "device = cuda: no NVIDIA GPU: the NVIDIA driver library is not installed; "
        "make a GPU available or set device = cpu"
    )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("DriverNotLoaded", "not loaded"),
        ("NoPermission", "may not be opened"),
        ("LibRmVersionMismatch", "reboot"),
        ("Unknown", "does not start"),
    ],
)
def test_driver_problems_are_explained(tmp_path: Path, error: str, words: str) -> None:
    """Each way for the driver not to start has its own words."""
    path = _scenario(tmp_path, "C0_control", init_error=error)
    with nvml.installed(path), pytest.raises(GpuUnavailableError, match=words):
        NvmlReader().read()


def test_driver_that_stops_answering(tmp_path: Path) -> None:
    """A driver that starts and then cannot count its GPUs is the same as none."""
    path = _scenario(tmp_path, "C0_control", missing_functions=["nvmlDeviceGetCount"])
    with nvml.installed(path) as binding:
        assert detect().chosen.kind == "cpu"
        assert binding.sessions == 0


def test_missing_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the binding there is no GPU, and no traceback."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert detect(environ={}).notes[0].endswith("nvidia-ml-py is not installed")


def test_every_session_is_closed() -> None:
    """The library is shut down after each reading, also when a GPU was lost during it."""
    with nvml.installed(nvml.SCENARIOS / "C12_one_gpu_lost.json") as binding:
        NvmlReader().read()
        assert binding.sessions == 0


def test_unreadable_texts_are_absent(tmp_path: Path) -> None:
    """A name that the binding cannot decode does not cost the GPU."""
    gpu = {"name": {"error": "UnicodeDecodeError"}, "uuid": {"error": "NotSupported"}}
    path = _scenario(tmp_path, "C0_control", devices=[gpu])
    with nvml.installed(path):
        chosen = detect().chosen
    assert (chosen.kind, chosen.name, chosen.uuid) == ("cuda", "unknown NVIDIA GPU", None)


def test_gpu_lost_during_the_queries(tmp_path: Path) -> None:
    """A GPU that falls off the bus after its handle was given is lost, not half known."""
    gpu = {"name": {"error": "GpuIsLost"}, "uuid": "GPU-1"}
    with nvml.installed(_scenario(tmp_path, "C0_control", devices=[gpu])):
        found = detect()
    assert found.chosen.kind == "cpu"
    assert [lost.index for lost in found.lost] == [0]


def test_partitioned_gpu_without_slices(tmp_path: Path) -> None:
    """MIG mode without a slice leaves nothing to run on, and says so."""
    gpu = {"name": "H100", "uuid": "GPU-1", "mig_mode": [1, 1], "mig_devices": []}
    with nvml.installed(_scenario(tmp_path, "C0_control", devices=[gpu])):
        assert "without a slice" in detect().notes[0]


def test_slice_without_a_profile_is_no_whole_gpu(tmp_path: Path) -> None:
    """A slice that does not name its profile must not share a key with the whole GPU."""
    gpu = {"name": "H100", "uuid": "GPU-1", "mig_mode": [1, 1], "mig_devices": [{"uuid": "MIG-1"}]}
    with nvml.installed(_scenario(tmp_path, "C0_control", devices=[gpu])):
        chosen = detect().chosen
    assert (chosen.name, chosen.mig_profile) == ("H100", "unknown")


@pytest.mark.parametrize(
    ("value", "names", "note"),
    [
        (None, ["H100", "L4"], None),
        ("1", ["L4"], None),
        ("1,0", ["L4", "H100"], None),
        ("0,0", ["H100"], None),
        (" 0 , -1, 1", ["H100"], None),
        ("GPU-ab22", ["L4"], None),
        ("GPU-ab", ["L4"], None),
        ("GPU-a", [], "fits more than one GPU"),
        ("1,7,0", ["L4"], "7 names no GPU"),
        ("tpu", [], "tpu names no GPU"),
        ("", [], "hides every GPU"),
        ("-1", [], "hides every GPU"),
    ],
)
def test_visible_devices(value: str | None, names: list[str], note: str | None) -> None:
    """The variable is read as CUDA reads it, and what it hides is explained."""
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    found = detect(reader=ListedGpus(H100, L4), environ=environ)
    assert [device.name for device in found.devices[:-1]] == names
    assert found.chosen == found.devices[0]
    if note is None:
        assert found.notes == ()
    else:
        assert note in found.notes[0]


def test_visible_slices() -> None:
    """The GPU's number or id means its first slice; a slice's id means that slice."""
    first = GpuFacts(index=0, name="one", uuid="MIG-a1", parent_uuid="GPU-x", mig_profile="1g.10gb")
    second = replace(first, name="two", uuid="MIG-a2")
    for value, name in [("0", "one"), ("GPU-x", "one"), ("MIG-a2", "two")]:
        found = detect(reader=ListedGpus(first, second), environ={"CUDA_VISIBLE_DEVICES": value})
        assert [device.name for device in found.devices[:-1]] == [name]
    hidden = detect(reader=ListedGpus(first, second), environ={"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert hidden.chosen.kind == "cpu"


def test_lost_gpu_in_the_list_is_passed_over() -> None:
    """A lost GPU does not hide the healthy one after it; alone, it leaves a demand unmet."""
    reader = ListedGpus(L4, lost=(LostGpu(index=0, reason="off the bus"),))
    assert detect(reader=reader, environ={"CUDA_VISIBLE_DEVICES": "0,1"}).chosen.name == "L4"
    with pytest.raises(DeviceError, match="GPU 0 cannot be used: off the bus"):
        detect("cuda", reader, environ={"CUDA_VISIBLE_DEVICES": "0"})


def test_mixed_gpus_need_a_stated_order() -> None:
    """With different GPUs an index is ambiguous until the order is fixed."""
    found = detect(reader=ListedGpus(H100, L4), environ={})
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.notes[0]


def test_no_gpu_listed() -> None:
    """A driver without a GPU is explained."""
    assert detect(reader=ListedGpus(), environ={}).notes[0] == "the NVIDIA driver lists no GPU"


def test_cpu_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demanded CPU never touches the driver."""

    def touched() -> None:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(gpu_module, "_import_binding", touched)
    found = detect("cpu")
    assert found.devices == (found.chosen,)
    assert found.chosen.kind == "cpu"


def test_unknown_request() -> None:
    """A device that does not exist is refused with the choices."""
    with pytest.raises(DeviceError, match="device = tpu: must be auto, cpu or cuda"):
        detect("tpu")  # type: ignore[arg-type]


def test_fingerprint_follows_what_matters() -> None:
    """Index and id do not count, everything that changes the speed does."""
    base = DeviceInfo(kind="cuda", name="L4", index=0, uuid="a", memory_bytes=24 * GIB, driver="1")
    assert replace(base, index=3, uuid="b").fingerprint == base.fingerprint
    others = [
        replace(base, name="L40"),
        replace(base, compute_capability="8.9"),
        replace(base, memory_bytes=20 * GIB),
        replace(base, mig_profile="1g.5gb"),
        replace(base, power_limit_watts=60.0),
        replace(base, driver="2"),
        replace(base, kind="cpu"),
    ]
    assert len({device.fingerprint for device in (base, *others)}) == len(others) + 1


def test_cpu_fingerprint_ignores_the_kernels_share() -> None:
    """A few MiB of memory more or less after a boot is the same machine."""
    cpu = DeviceInfo(kind="cpu", name="x", cores=2, isa=("avx2",), memory_bytes=16 * GIB)
    assert replace(cpu, memory_bytes=16 * GIB - 5_000_000).fingerprint == cpu.fingerprint
    assert replace(cpu, cores=4).fingerprint != cpu.fingerprint
    assert replace(cpu, isa=("avx2", "fma")).fingerprint != cpu.fingerprint


def test_document_carries_the_fingerprint_and_no_id() -> None:
    """The published device has the figures and the fingerprint, not the GPU's id."""
    info = DeviceInfo(kind="cuda", name="L4", index=1, uuid="GPU-secret", memory_bytes=GIB)
    document = to_document(info)
    assert document.fingerprint == info.fingerprint
    assert document.memory_bytes == GIB
    assert "GPU-secret" not in document.model_dump_json()


def test_no_framework_is_imported() -> None:
    """Detection works in a process that must stay small: no torch, no numpy."""
    code = (
        "import sys; from autotune.device.detection import detect; detect(); "
        "print(sorted({'torch', 'numpy', 'optuna'} & set(sys.modules)))"
    )
    scenario = nvml.SCENARIOS / "C0_control.json"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=nvml.environment(scenario),
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "[]\n"

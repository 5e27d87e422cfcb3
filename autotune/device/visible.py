"""`CUDA_VISIBLE_DEVICES`: which of the GPUs this process may use, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.device.gpu import GpuFacts, GpuInventory

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The outcome.

    Attributes:
        gpus: In the order of the variable; the first is the framework's device 0.
        notes: One line for everything that was named and is not there.
    """

    gpus: tuple[GpuFacts, ...]
    notes: tuple[str, ...] = ()


def select_visible(inventory: GpuInventory, value: str | None) -> Visible:
    """Applies the variable the way CUDA does: the list ends before the first unknown entry.

    Entries are indices, GPU ids or unique beginnings of them, or ids of slices. An index or a
    GPU id on a partitioned GPU means its first slice. A lost GPU is passed over.

    Args:
        inventory: All GPUs.
        value: The variable's value; None where it is not set, which shows every GPU.
    """
    if value is None:
        return Visible(gpus=inventory.gpus)
    entries = [entry.strip() for entry in value.split(",")]
    chosen: list[GpuFacts] = []
    notes: list[str] = []
    lost = {str(gpu.index) for gpu in inventory.lost}
    for entry in entries:
        if entry in ("", "-1"):
            break
        if entry in lost:
            notes.append(f"{VARIABLE} = {value}: GPU {entry} cannot be used and is passed over")
            continue
        problem, found = _find(inventory, entry)
        if problem:
            notes.append(f"{VARIABLE} = {value}: {entry} {problem}; it and what follows is ignored")
            break
        chosen += [gpu for gpu in found[:1] if gpu not in chosen]
    if not chosen and not notes:
        notes.append(f"{VARIABLE} = {value or 'empty'} hides every GPU")
    return Visible(gpus=tuple(chosen), notes=tuple(notes))


def _find(inventory: GpuInventory, entry: str) -> tuple[str, Sequence[GpuFacts]]:
    """A problem (empty if none) and the GPUs or slices an entry stands for."""
    if entry.isdecimal():
        index = int(entry)
        found = [gpu for gpu in inventory.gpus if gpu.index == index]
    else:
        found = [gpu for gpu in inventory.gpus if _named(gpu, entry)]
    if not found:
        return "names no GPU of this machine", ()
    # The slices of one GPU may share the entry; two GPUs, or two slices named as such, may not.
    distinct = {gpu.uuid if entry.startswith("MIG-") else gpu.index for gpu in found}
    return ("fits more than one GPU" if len(distinct) > 1 else ""), found


def _named(gpu: GpuFacts, entry: str) -> bool:
    return entry.startswith(("GPU-", "MIG-")) and any(
        uuid is not None and uuid.startswith(entry) for uuid in (gpu.uuid, gpu.parent_uuid)
    )

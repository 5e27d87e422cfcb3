"""The figures and tables of `bench_engine`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import EMBEDDING, read_weights
from tests.benchmarks.contest import OURS, Result
from tests.benchmarks.engine_tasks import ASSISTED, plain_name
from tests.benchmarks.machine import Bandwidth
from tests.benchmarks.modes import Mode
from tests.benchmarks.overhead import Overhead
from tests.benchmarks.probe import Probe
from tests.benchmarks.spread import Spread, spread

_JUDGED_TOGETHER = (1, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """What the machine gave.

    Attributes:
        before: Bandwidth before everything,
        after: and after.
        stolen_share: Of the processor time between, taken by the host; None if unknown.
    """

    before: Bandwidth
    after: Bandwidth
    stolen_share: float | None


def bytes_per_step(model: Path) -> int:
    """Weights that a decode step must read, as the checkpoint stores them.

    A step looks up single rows of the embedding; all of it is read only where it is the output
    head as well.
    """
    config = read_config(model)
    weights = read_weights(model, config)
    return sum(
        tensor.numel() * tensor.itemsize
        for name, tensor in weights.items()
        if name != EMBEDDING or config.tie_word_embeddings
    )


def floor_share(result: Result, num_bytes: int) -> Spread:
    """Share of a batch-1 step that reading the weights alone would take, block by block.

    Args:
        result: Plain decoding at batch 1, with read bandwidths.
        num_bytes: From `bytes_per_step`.
    """
    pairs = zip(result.decode(OURS), result.read_bandwidths, strict=True)
    return spread([num_bytes / bandwidth * rate for rate, bandwidth in pairs])


def summarise(
    results: Sequence[Result], overheads: Sequence[Overhead], model: Path
) -> dict[str, object]:
    """The figures that are judged; None where a part was left out."""
    plain = {
        result.task.batch: result.decode_ratio("vllm").median
        for result in results
        if result.task.name != ASSISTED
    }
    by_name = {result.task.name: result for result in results}
    share = floor_share(by_name[plain_name(1)], bytes_per_step(model))
    return {
        "plain_vs_vllm": {str(batch): value for batch, value in plain.items()},
        "plain_vs_vllm_min": min(plain[batch] for batch in _JUDGED_TOGETHER if batch in plain),
        "assisted_vs_transformers": by_name[ASSISTED].decode_ratio("transformers").median,
        "floor_share_b1": share.median,
        "overhead_share_max": max((cell.share for cell in overheads), default=None),
    }


def to_details(
    results: Sequence[Result],
    overheads: Sequence[Overhead],
    machine: MachineState,
    probes: Mapping[str, Probe],
) -> dict[str, object]:
    """Everything behind the summary, as JSON values."""
    return {
        "bandwidth_before": machine.before.to_json(),
        "bandwidth_after": machine.after.to_json(),
        "stolen_share": machine.stolen_share,
        "settings": {name: probe.to_json() for name, probe in probes.items()},
        "tasks": [result.to_json() for result in results],
        "overhead": [cell.to_json() for cell in overheads],
    }


def print_tables(
    results: Sequence[Result],
    overheads: Sequence[Overhead],
    machine: MachineState,
    probes: Mapping[str, Probe],
    ours: Mode,
) -> None:
    """Everything for people, on standard output."""
    lines = [*_machine_lines(machine), "", f"settings of ours: {ours.dtype}"]
    for name, probe in probes.items():
        lines += ["", f"settings of {name} tried, decode tokens/s", *_probe_lines(probe)]
    lines += ["", "decode tokens/s, median (range) over the blocks; ratios block by block"]
    for result in results:
        lines += _result_lines(result)
    if overheads:
        lines += ["", "share of a round outside the models, median (range)"]
        lines += [_overhead_line(cell) for cell in overheads]
        worst = max(overheads, key=lambda cell: cell.share)
        lines.append(f"largest: {worst.share:.1%} ({worst.describe()})")
    sys.stdout.write("\n".join(lines) + "\n")


def _machine_lines(machine: MachineState) -> list[str]:
    lines = [
        f"memory bandwidth {when}: read {found.read / 1e9:.1f} GB/s, "
        f"copy {found.copy / 1e9:.1f} GB/s"
        for when, found in (("before", machine.before), ("after", machine.after))
    ]
    if machine.stolen_share is not None:
        lines.append(f"processor time taken by the host: {machine.stolen_share:.1%}")
    return lines


def _probe_lines(probe: Probe) -> list[str]:
    lines = []
    for row in probe.to_json():
        if "left_out" in row:
            lines.append(f"  {row['settings']}: {row['left_out']}")
            continue
        rates, chosen = row["probed_decode_tokens_per_s"], row["chosen_for"]
        assert isinstance(rates, dict)
        assert isinstance(chosen, list)
        shown = ", ".join(
            f"{task} {rate:.1f}{' (chosen)' if task in chosen else ''}"
            for task, rate in rates.items()
        )
        lines.append(f"  {row['settings']}: {shown}")
    return lines


def _result_lines(result: Result) -> list[str]:
    task = result.task
    title = task.name + (f", K = {task.num_drafts}" if task.num_drafts else "")
    stolen = f"; stolen {max(result.stolen):.1%} at most" if result.stolen else ""
    lines = [f"{title}{stolen}"]
    for name in result.runs:
        line = f"  {name:<13} {spread(result.decode(name)).show(1):<26}"
        line += f" with prefill {spread(result.total(name)).median:.1f}"
        if name != OURS:
            line += f"; ours / {name} {result.decode_ratio(name).show(2)}"
            line += f"; equal answers {result.equal_answers(name)} of {len(task.prompts)}"
        lines.append(line)
    if result.read_bandwidths:
        read = spread([value / 1e9 for value in result.read_bandwidths])
        lines.append(f"  read bandwidth {read.show(1)} GB/s")
    return lines


def _overhead_line(cell: Overhead) -> str:
    return (
        f"  {cell.describe():<28} {cell.share:6.1%} ({cell.share_low:.1%} to "
        f"{cell.share_high:.1%}) of {1000 * cell.round_s:.1f} ms, {cell.rounds} rounds"
    )

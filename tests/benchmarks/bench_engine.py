"""`make bench-engine`: our CPU path beside vLLM and transformers, and what the engine itself costs.

Everybody decodes the same prompts greedily, in a process of its own that is stopped while others
are measured, in interleaved blocks. The peers first look for their best settings. Rates count from
the moment when every request of a batch has its first token; those with prefill are stored too.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from autotune.cli.bar import progress_bar
from autotune.device.detection import DeviceInfo, detect
from autotune.progress import Progress, Stage
from autotune.shipped import shipped_drafters
from engine.cache_folder import default_cache
from engine.checkpoint.hub import EMBEDDED, resolve_model
from engine.drafters.factory import build_drafter, from_folder, ngram
from engine.kernels.backend import fastest_dtype
from engine.tokenizer import Tokenizer
from engine.training.export import assemble
from tests.benchmarks.contest import OURS, Result, Task, run_blocks
from tests.benchmarks.contestants import Contestants
from tests.benchmarks.engine_report import MachineState, print_tables, summarise, to_details
from tests.benchmarks.engine_tasks import (
    assisted_task,
    plain_name,
    plain_tasks,
    request_len,
    short_prompts,
)
from tests.benchmarks.load_engine import load_engine
from tests.benchmarks.machine import measure_bandwidth, read_ticks
from tests.benchmarks.modes import Mode
from tests.benchmarks.overhead import Arm, Limit, Overhead, longest_output, measure_overheads
from tests.benchmarks.peers import Peer, PeerError
from tests.benchmarks.probe import Probe, probe_dtypes, probe_vllm
from tests.benchmarks.result import report

_DRAFT = "pruned-2"
_K = 3
_NGRAM_K = 5
_START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """What stays the same throughout a run."""

    model: Path
    tokenizer: Tokenizer
    mode: Mode
    threads: int
    batches: tuple[int, ...]
    num_blocks: int


def main() -> None:
    """Run everything and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="Python of vLLM's environment")
    parser.add_argument("--blocks", type=int, default=7, help="blocks per task")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64], metavar="B")
    parser.add_argument("--no-overhead", action="store_true", help="leave that part out")
    options = parser.parse_args()
    if 1 not in options.batches or min(options.batches) < 1 or options.blocks < 1:
        parser.error("--batches needs a 1 and nothing below; --blocks at least 1")
    # Ended like Ctrl-C, so that no child stays behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    device = detect("cpu").chosen
    try:
        with progress_bar() as progress, tempfile.TemporaryDirectory() as scratch:
            summary, details = _run(options, device, Path(scratch), progress)
    except PeerError as error:
        sys.exit(f"bench-engine: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    report("engine", summary, details, device)


def _run(
    options: argparse.Namespace, device: DeviceInfo, scratch: Path, progress: Progress
) -> tuple[dict[str, object], dict[str, object]]:
    progress.plan(_plan(options.blocks, with_overhead=not options.no_overhead))
    progress.begin("Prepare")
    model = resolve_model(EMBEDDED, default_cache(), progress.note)
    dtype = fastest_dtype(multiplies_bfloat16=device.multiplies_bfloat16)
    setup = _Setup(
        model=model,
        tokenizer=Tokenizer(model),
        # As a search decides by itself.
        mode=Mode(dtype=str(dtype).removeprefix("torch.")),
        threads=device.cores or 1,
        batches=tuple(sorted(set(options.batches))),
        num_blocks=options.blocks,
    )
    torch.set_num_threads(setup.threads)
    before, ticks_before = measure_bandwidth(), read_ticks()
    results, probes = _contest(setup, options.vllm, scratch, progress)
    overheads = [] if options.no_overhead else _overheads(setup, progress)
    stolen = None
    if ticks_before is not None and (ticks_after := read_ticks()) is not None:
        stolen = ticks_before.share_stolen_until(ticks_after)
    machine = MachineState(before=before, after=measure_bandwidth(), stolen_share=stolen)
    summary = summarise(results, overheads, setup.model)
    details = {
        "threads": setup.threads,
        "ours": setup.mode.dtype,
        **to_details(results, overheads, machine, probes),
    }
    print_tables(results, overheads, machine, probes, setup.mode)
    return summary, details


def _plan(num_blocks: int, *, with_overhead: bool) -> list[Stage]:
    stages = [
        Stage("Prepare", 10),
        Stage("Try the settings of transformers", 60),
        Stage("Try the settings of vLLM", 360),
        Stage("Measure", num_blocks * 60),
    ]
    return [*stages, Stage("Overhead", 150)] if with_overhead else stages


def _contest(
    setup: _Setup, vllm_python: Path, scratch: Path, progress: Progress
) -> tuple[list[Result], dict[str, Probe]]:
    """Probe the peers and run the blocks; no process is left on return."""
    plain = plain_tasks(setup.tokenizer, setup.batches)
    assisted = assisted_task(setup.tokenizer, _K)
    draft = shipped_drafters()[_DRAFT]
    assemble(draft, setup.model, scratch / _DRAFT)
    plain_len = max(request_len(task) for task in plain)
    contestants = Contestants(
        model=setup.model,
        draft=draft,
        whole_draft=scratch / _DRAFT,
        vllm_python=vllm_python,
        threads=setup.threads,
        slots=max(setup.batches),
        plain_len=plain_len,
        max_len=max(plain_len, request_len(assisted)),
        scratch=scratch,
    )
    with ExitStack() as stack:
        ours = stack.enter_context(contestants.ours(setup.mode))
        ours.wait_until_ready(_START_TIMEOUT_S)
        progress.begin("Try the settings of transformers")
        transformers = Probe(
            start=contestants.transformers,
            tasks=[task for task in plain if task.batch == 1] + [assisted],
            stack=stack,
            describe=lambda mode: mode.dtype,
            on_mode=_Counter(progress, 2),
        )
        probe_dtypes(transformers)
        progress.begin("Try the settings of vLLM")
        vllm = Probe(
            start=contestants.vllm,
            tasks=plain,
            stack=stack,
            describe=Mode.describe_vllm,
            on_mode=_Counter(progress, 7),
        )
        probe_vllm(vllm, contestants.vllm_launches())
        probes = {"vllm": vllm, "transformers": transformers}
        tasks = [(task, _entrants(task, ours, probes)) for task in [*plain, assisted]]
        progress.begin("Measure")
        num_runs = setup.num_blocks * sum(len(entrants) for _, entrants in tasks)
        results = run_blocks(
            tasks,
            setup.num_blocks,
            _Counter(progress, num_runs),
            with_bandwidth=plain_name(1),
        )
    return results, probes


def _entrants(task: Task, ours: Peer, probes: dict[str, Probe]) -> dict[str, Peer]:
    """Ours, and every peer in its best mode for a task."""
    peers = {name: probe.best_peers().get(task.name) for name, probe in probes.items()}
    return {OURS: ours} | {name: peer for name, peer in peers.items() if peer is not None}


def _overheads(setup: _Setup, progress: Progress) -> list[Overhead]:
    progress.begin("Overhead")
    limit = Limit()
    shipped = shipped_drafters()
    specs = {"off": None, "ngram": ngram()} | {
        name: from_folder(name, shipped[name]) for name in ("eagle3", _DRAFT)
    }
    drafts = {"off": 0, "ngram": _NGRAM_K}
    prompts = short_prompts(setup.tokenizer, max(setup.batches))
    longest = longest_output(max(drafts.get(name, _K) for name in specs), limit)
    engine = load_engine(
        setup.model,
        dtype=setup.mode.dtype,
        slots=max(setup.batches),
        max_len=len(prompts[0]) + longest,
    )
    arms = {
        name: Arm(
            drafter=None if spec is None else build_drafter(spec, engine, setup.model),
            num_drafts=drafts.get(name, _K),
        )
        for name, spec in specs.items()
    }
    return measure_overheads(
        engine,
        arms,
        prompts,
        setup.batches,
        limit=limit,
        on_cell=_Counter(progress, 2 * len(arms) * len(setup.batches)),
    )


class _Counter:
    """Moves the bar by one part of a stage at every call."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, text: str) -> None:
        """Show what is at hand."""
        self._progress.update(min(self._done / self._total, 1.0), text)
        self._done += 1


if __name__ == "__main__":
    main()

"""Finds the settings in which each peer is fastest, by trying them.

Which dtype is fast depends on the processor's matrix instructions, and whether compiling pays on
the batch size: nothing is assumed. The winners stay alive, stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from tests.benchmarks.contest import Task, run_once
from tests.benchmarks.modes import (
    DTYPES,
    Launch,
    Mode,
    best_modes,
    other_launches,
    tasks_won,
    worth_compiling,
)
from tests.benchmarks.peers import Peer, PeerError

_START_TIMEOUT_S = 420.0
_MAX_TOKENS = 24
_REPEATS = 2
_HOPELESS = 1 / 3  # of the best rate at a task: the other tasks are not tried


@dataclass(slots=True)
class Probe:
    """The modes of one peer.

    Attributes:
        start: Starts the peer in a mode.
        tasks: What it will be measured on.
        stack: Ends every process that is started.
        describe: A mode in words.
        on_mode: Told which mode is tried.
        rates: Tokens per second found, by mode and task.
        failures: Why a mode has no rates.
        peers: The processes that run.
    """

    start: Callable[[Mode], Peer]
    tasks: Sequence[Task]
    stack: ExitStack
    describe: Callable[[Mode], str]
    on_mode: Callable[[str], None]
    rates: dict[Mode, dict[str, float]] = field(default_factory=dict)
    failures: dict[Mode, str] = field(default_factory=dict)
    peers: dict[Mode, Peer] = field(default_factory=dict)

    def try_mode(self, mode: Mode, tasks: Iterable[Task]) -> None:
        """Start a mode and measure it briefly; a failure is noted."""
        self.on_mode(self.describe(mode))
        try:
            peer = self.stack.enter_context(self.start(mode))
            self.peers[mode] = peer
            peer.wait_until_ready(_START_TIMEOUT_S)
            self.rates[mode] = self._measured(peer, tasks)
        except PeerError as error:
            self.failures[mode] = str(error)
            self._end(mode)

    def _measured(self, peer: Peer, tasks: Iterable[Task]) -> dict[str, float]:
        """Rates by task.

        Raises:
            PeerError: The peer fails, or is so far behind at a task that the rest would only take
                time: emulated arithmetic needs minutes for what another mode does in seconds.
        """
        found: dict[str, float] = {}
        for task in tasks:
            rate = found[task.name] = _rate(peer, task)
            best = max((rates.get(task.name, 0.0) for rates in self.rates.values()), default=0.0)
            if rate < _HOPELESS * best:
                raise PeerError(f"{rate:.1f} tokens/s at {task.name}, another mode {best:.1f}")
        return found

    def keep_winners(self) -> dict[str, Mode]:
        """End the processes that are best at nothing; the best mode of each task.

        Raises:
            PeerError: No mode works.
        """
        best = best_modes(self.rates)
        if not best:
            raise PeerError("; ".join(self.failures.values()))
        for mode in self.peers.keys() - set(best.values()):
            self._end(mode)
        return best

    def best_peers(self) -> Mapping[str, Peer]:
        """The process that is best at each task."""
        return {task: self.peers[mode] for task, mode in self.keep_winners().items()}

    def to_json(self) -> list[dict[str, object]]:
        """Every mode with its rates, or why it has none."""
        won = tasks_won(best_modes(self.rates))
        rows: list[dict[str, object]] = [
            {
                "settings": self.describe(mode),
                "probed_decode_tokens_per_s": rates,
                "chosen_for": won.get(mode, []),
            }
            for mode, rates in self.rates.items()
        ]
        return rows + [
            {"settings": self.describe(mode), "left_out": reason}
            for mode, reason in self.failures.items()
        ]

    def _end(self, mode: Mode) -> None:
        if mode in self.peers:
            self.peers.pop(mode).close()


def probe_dtypes(probe: Probe) -> None:
    """Try both dtypes on every task.

    Raises:
        PeerError: Neither works.
    """
    for dtype in DTYPES:
        probe.try_mode(Mode(dtype=dtype), probe.tasks)
    probe.keep_winners()


def probe_vllm(probe: Probe, launches: Sequence[Launch]) -> None:
    """Try dtypes and compiling within this process, then launch the winners otherwise.

    Raises:
        PeerError: No mode works.
    """
    for dtype in DTYPES:
        probe.try_mode(Mode(dtype=dtype), probe.tasks)
    near = worth_compiling(probe.rates)
    for eager in list(probe.rates):
        compiled = replace(eager, compiled=True)
        if eager in near:
            probe.try_mode(compiled, probe.tasks)
        else:
            probe.failures[compiled] = "not tried: eager, this dtype is far behind the other"
    for mode, names in tasks_won(probe.keep_winners()).items():
        tasks = [task for task in probe.tasks if task.name in names]
        for other in other_launches([mode], launches):
            probe.try_mode(other, tasks)
            probe.keep_winners()


def _rate(peer: Peer, task: Task) -> float:
    """The best of a few short runs, after one that warms up this batch size."""
    short = replace(task, max_tokens=min(task.max_tokens, _MAX_TOKENS))
    run_once(peer, short)
    return max(run_once(peer, short).decode_tokens_per_s for _ in range(_REPEATS))

"""Interleaved blocks: every contestant once per block and task, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.benchmarks.machine import read_bandwidth, read_ticks
from tests.benchmarks.spread import Spread, ratio, spread

OURS = "ours"
_SEED = 20
_TIMEOUT_S = 600.0


class Contestant(Protocol):
    """Whoever can be asked for a run; see `tests.benchmarks.peers.Peer`."""

    def ask(self, command: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """The answer to one command."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is measured.

    Attributes:
        name: In tables.
        batch: Requests at a time.
        prompts: Token ids of each request.
        max_tokens: Of each answer.
        num_drafts: K; 0 is plain decoding.
    """

    name: str
    batch: int
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    num_drafts: int = 0

    def command(self) -> dict[str, object]:
        """As `speed_child` reads it."""
        return {
            "prompts": self.prompts,
            "batch": self.batch,
            "max_tokens": self.max_tokens,
            "num_drafts": self.num_drafts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement.

    Attributes:
        decode_tokens_per_s: From the moment when every request of a batch has its first token.
        total_tokens_per_s: Prefill included.
        outputs: The answers.
    """

    decode_tokens_per_s: float
    total_tokens_per_s: float
    outputs: tuple[tuple[int, ...], ...]


@dataclass(slots=True, kw_only=True)
class Result:
    """The blocks of one task.

    Attributes:
        task: Which.
        runs: One per block, by contestant.
        stolen: Per block, the share of processor time that the host took.
        read_bandwidths: Per block, measured just before; empty unless asked for.
    """

    task: Task
    runs: dict[str, list[Run]]
    stolen: list[float] = field(default_factory=list)
    read_bandwidths: list[float] = field(default_factory=list)

    def decode(self, name: str) -> list[float]:
        """Decode rates of a contestant by block."""
        return [run.decode_tokens_per_s for run in self.runs[name]]

    def total(self, name: str) -> list[float]:
        """Rates of a contestant by block, prefill included."""
        return [run.total_tokens_per_s for run in self.runs[name]]

    def decode_ratio(self, peer: str) -> Spread:
        """Decode rate of ours over that of a peer."""
        return ratio(self.decode(OURS), self.decode(peer))

    def equal_answers(self, peer: str) -> int:
        """Answers of the first block that are the same as ours."""
        pairs = zip(self.runs[OURS][0].outputs, self.runs[peer][0].outputs, strict=True)
        return sum(a == b for a, b in pairs)

    def to_json(self) -> dict[str, object]:
        """All figures, without the answers."""
        peers = [name for name in self.runs if name != OURS]
        return {
            "task": self.task.name,
            "batch": self.task.batch,
            "num_speculative_tokens": self.task.num_drafts,
            "requests": len(self.task.prompts),
            "max_tokens": self.task.max_tokens,
            "stolen_share": self.stolen,
            "read_gb_per_s": [value / 1e9 for value in self.read_bandwidths],
            "decode_tokens_per_s": {
                name: {**spread(self.decode(name)).to_json(), "blocks": self.decode(name)}
                for name in self.runs
            },
            "total_tokens_per_s": {
                name: {**spread(self.total(name)).to_json(), "blocks": self.total(name)}
                for name in self.runs
            },
            "decode_ratio": {name: self.decode_ratio(name).to_json() for name in peers},
            "total_ratio": {
                name: ratio(self.total(OURS), self.total(name)).to_json() for name in peers
            },
            "equal_answers": {name: self.equal_answers(name) for name in peers},
        }


def run_once(peer: Contestant, task: Task) -> Run:
    """One measurement of one contestant.

    Raises:
        PeerError: It failed.
    """
    answer = peer.ask(task.command(), _TIMEOUT_S)
    return Run(
        decode_tokens_per_s=answer["decode_tokens_per_s"],
        total_tokens_per_s=answer["total_tokens_per_s"],
        outputs=tuple(tuple(output) for output in answer["outputs"]),
    )


def run_blocks(
    tasks: Sequence[tuple[Task, Mapping[str, Contestant]]],
    num_blocks: int,
    on_run: Callable[[str], None],
    *,
    with_bandwidth: str,
) -> list[Result]:
    """Measure every task once per block.

    Args:
        tasks: Each with its contestants, all stopped; one of them is `OURS`.
        num_blocks: Blocks.
        on_run: Told what was measured, after every run.
        with_bandwidth: The task before which read bandwidth is measured in every block.

    Raises:
        PeerError: A contestant failed.
    """
    rng = random.Random(_SEED)
    results = [Result(task=task, runs={name: [] for name in peers}) for task, peers in tasks]
    for block in range(num_blocks):
        for result, (task, peers) in zip(results, tasks, strict=True):
            before = read_ticks()
            if task.name == with_bandwidth:
                result.read_bandwidths.append(read_bandwidth())
            for name in rng.sample(sorted(peers), len(peers)):
                result.runs[name].append(run_once(peers[name], task))
                on_run(f"{task.name}, {name}, block {block + 1} of {num_blocks}")
            after = read_ticks()
            if before is not None and after is not None:
                result.stolen.append(before.share_stolen_until(after))
    return results

"""The workload: a fingerprinted set of requests that everything is measured on."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import TrafficError
from autotune.traffic.reader import DEFAULT_MAX_LINE_BYTES, read_requests
from autotune.traffic.records import SampledRequest
from policies.types import WorkloadKey

DEFAULT_SOURCE = "default"
"""Source of the shipped workload: our own text, not anybody's traffic."""

DEFAULT_SHA256 = "4481ac0390ee83253b025b8c25d4a620d3c30922aaea55262bb25bb5580e17ed"
"""SHA-256 of the shipped file's bytes, fixed before anything was measured on it."""

DEFAULT_MAX_REQUESTS = 10_000
"""Far above what a search replays, and small enough to hold in memory."""

TEMPERATURE_BUCKETS = ("0", "(0,0.8]", "(0.8,1]", ">1")
"""Greedy, focused, the servers' default, and above it: acceptance differs most between these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests with their identity.

    Attributes:
        source: `default` for the shipped workload, whose results must be labelled as such and
            never published for a serving engine; else `file:<name>`.
        fingerprint: SHA-256 over the canonical requests, in order.
        requests: At least one.
        skipped: Lines of the source that were not used, counted by reason.
        cut_short: True where the source ended inside a line or an archive.
    """

    source: str
    fingerprint: str
    requests: tuple[SampledRequest, ...]
    skipped: Mapping[str, int]
    cut_short: bool = False

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("requests = (): a workload needs at least one")

    def key(self) -> WorkloadKey:
        """What a result tuned on this workload is filed under."""
        return WorkloadKey(
            source=self.source, fingerprint=self.fingerprint, num_requests=len(self.requests)
        )

    def share_by_task(self) -> dict[str, float]:
        """Fraction of the requests per task, tasks in alphabetical order."""
        counts = Counter(request.task for request in self.requests)
        return _shares(dict(sorted(counts.items())))

    def share_by_temperature(self) -> dict[str, float]:
        """Fraction of the requests per temperature bucket, buckets that occur only.

        The buckets are `0` (greedy), `(0,0.8]`, `(0.8,1]` and `>1`.
        """
        counts = Counter(temperature_bucket(request.temperature) for request in self.requests)
        return _shares({name: counts[name] for name in TEMPERATURE_BUCKETS if counts[name]})

    def sample(self, n: int, seed: int) -> Workload:
        """A part of the workload that keeps the proportions of the tasks.

        Each task gets its share of `n` (largest remainders). Within a task, requests are taken in
        the order of a hash of seed and content, so the choice depends on no library's random
        generator and a larger sample mostly contains a smaller one of the same seed.

        Args:
            n: Requests wanted; the workload itself is returned when it has no more.
            seed: Another seed gives another, equally fair, choice.

        Returns:
            A workload with its own fingerprint, requests in their original order.

        Raises:
            ValueError: `n` is below 1.
        """
        if n < 1:
            raise ValueError(f"n = {n}: must be 1 or more")
        if n >= len(self.requests):
            return self
        by_task: defaultdict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(self.requests):
            by_task[request.task].append(index)
        rank = _ranking(self.requests, seed)
        chosen: list[int] = []
        for task, quota in _quotas({task: len(own) for task, own in by_task.items()}, n).items():
            chosen += sorted(by_task[task], key=rank)[:quota]
        requests = tuple(self.requests[index] for index in sorted(chosen))
        return replace(self, requests=requests, fingerprint=fingerprint(requests))


def load_workload(
    path: Path | None,
    *,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    limit: int | None = DEFAULT_MAX_REQUESTS,
) -> Workload:
    """Loads a file of requests, or the shipped workload.

    Args:
        path: JSON-lines file as in `read_requests`; None for the shipped workload.
        max_line_bytes: Longer lines are skipped.
        limit: Most requests to take, from the start of the file; None takes all.

    Raises:
        TrafficError: The file cannot be used, or the shipped one is not the one we pinned.
    """
    if path is not None:
        return _load(path, f"file:{path.name}", max_line_bytes, limit)
    resource = importlib.resources.files("autotune") / "workloads" / "default.jsonl"
    with importlib.resources.as_file(resource) as shipped:
        found = hashlib.sha256(shipped.read_bytes()).hexdigest()
        if found != DEFAULT_SHA256:
            raise TrafficError(
                f"{shipped}: the shipped workload was changed (SHA-256 {found}); reinstall "
                "spectuned, or pass your own requests with --traffic FILE"
            )
        return _load(shipped, DEFAULT_SOURCE, max_line_bytes, limit)


def fingerprint(requests: Sequence[SampledRequest]) -> str:
    """SHA-256 over the requests' digests, in order."""
    joined = "\n".join(request.digest() for request in requests)
    return hashlib.sha256(joined.encode()).hexdigest()


def temperature_bucket(temperature: float) -> str:
    """The name in `TEMPERATURE_BUCKETS` that a sampling temperature falls under."""
    greedy, focused, usual, above = TEMPERATURE_BUCKETS
    if temperature <= 0.0:
        return greedy
    if temperature <= 0.8:
        return focused
    return usual if temperature <= 1.0 else above


def _load(path: Path, source: str, max_line_bytes: int, limit: int | None) -> Workload:
    result = read_requests(path, max_line_bytes=max_line_bytes, limit=limit)
    return Workload(
        source=source,
        fingerprint=fingerprint(result.requests),
        requests=result.requests,
        skipped=result.skipped,
        cut_short=result.cut_short,
    )


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def _ranking(requests: Sequence[SampledRequest], seed: int) -> Callable[[int], tuple[str, int]]:
    def rank(index: int) -> tuple[str, int]:
        mixed = f"{seed}:{requests[index].digest()}".encode()
        return hashlib.sha256(mixed).hexdigest(), index

    return rank


def _quotas(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """Splits `n` over the tasks in proportion to their sizes, by largest remainders."""
    total = sum(sizes.values())
    quotas = {task: n * size // total for task, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda task: (-(n * sizes[task] % total), task))
    for task in by_remainder[: n - sum(quotas.values())]:
        quotas[task] += 1
    return quotas

"""The workload: the shipped text and its pin, identity, shares, and fair sub-samples."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from autotune.errors import TrafficError
from autotune.traffic import workload as module
from autotune.traffic.records import SampledRequest
from autotune.traffic.workload import Workload, fingerprint, load_workload, temperature_bucket
from policies.types import WorkloadKey


def _workload(tasks: str) -> Workload:
    requests = tuple(
        SampledRequest(request_id=f"line-{i}", prompt=f"text {i}", task=task)
        for i, task in enumerate(tasks)
    )
    return Workload(
        source="file:x", fingerprint=fingerprint(requests), requests=requests, skipped={}
    )


def test_shipped_workload_is_the_pinned_one() -> None:
    """The default loads, is labelled as such, and has four equal buckets of tasks."""
    workload = load_workload(None)
    assert workload.source == "default"
    assert workload.skipped == {}
    assert not workload.cut_short
    assert Counter(request.task for request in workload.requests) == {
        "code": 24,
        "chat": 24,
        "copy": 24,
        "open": 24,
    }
    assert workload.key() == WorkloadKey(
        source="default", fingerprint=workload.fingerprint, num_requests=96
    )


def test_shipped_workload_is_varied() -> None:
    """No request occurs twice; several turns, system prompts and all temperatures occur."""
    requests = load_workload(None).requests
    assert len({request.digest() for request in requests}) == len(requests)
    assert len({request.messages[-1].content[:20] for request in requests}) >= 80
    assert sum(len(request.messages) > 2 for request in requests) >= 8
    assert sum(request.messages[0].role == "system" for request in requests) >= 8
    assert {r.temperature for r in requests if r.task == "open"} == {1.0}
    assert {r.temperature for r in requests if r.task == "copy"} == {0.0}
    assert all(64 <= request.max_tokens <= 128 for request in requests)


def test_every_prefix_of_the_shipped_workload_is_balanced() -> None:
    """The tasks take turns, so a batch of the first few requests is no batch of one task."""
    tasks = [request.task for request in load_workload(None).requests]
    assert all(len(set(tasks[i : i + 4])) == 4 for i in range(0, len(tasks), 4))


def test_changed_shipped_workload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not the pinned one is not used under the name `default`."""
    monkeypatch.setattr(module, "DEFAULT_SHA256", "0" * 64)
    with pytest.raises(TrafficError, match=r"default\.jsonl: the shipped workload was changed"):
        load_workload(None)


def test_file_of_requests(tmp_path: Path) -> None:
    """A file gives its base name, its skipped lines, and a fingerprint free of layout."""
    rows = [{"prompt": "a", "temperature": 0}, {"prompt": "b"}]
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text("oops\n" + "\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    spaced = "\n\n".join(json.dumps(row, indent=None, separators=(" , ", " : ")) for row in rows)
    packed.write_bytes(gzip.compress(spaced.encode()))
    first, second = load_workload(plain), load_workload(packed)
    assert first.source == "file:a.jsonl"
    assert first.skipped == {"not JSON": 1}
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != load_workload(plain, limit=1).fingerprint


def test_order_is_part_of_the_fingerprint() -> None:
    """Another order makes other batches, so it is another workload."""
    requests = _workload("ab").requests
    assert fingerprint(requests) != fingerprint(requests[::-1])


def test_shares() -> None:
    """Shares sum to one, tasks come sorted, and buckets that do not occur are left out."""
    requests = tuple(
        SampledRequest(request_id="r", prompt="x", task=task, temperature=temperature)
        for task, temperature in [("b", 0.0), ("a", 0.7), ("b", 1.0), ("b", 1.0)]
    )
    workload = Workload(source="file:x", fingerprint="f", requests=requests, skipped={})
    assert workload.share_by_task() == {"a": 0.25, "b": 0.75}
    assert list(workload.share_by_task()) == ["a", "b"]
    assert workload.share_by_temperature() == {"0": 0.25, "(0,0.8]": 0.25, "(0.8,1]": 0.5}


@pytest.mark.parametrize(
    ("temperature", "bucket"),
    [
        (0.0, "0"),
        (1e-6, "(0,0.8]"),
        (0.8, "(0,0.8]"),
        (0.81, "(0.8,1]"),
        (1.0, "(0.8,1]"),
        (1.01, ">1"),
    ],
)
def test_temperature_buckets(temperature: float, bucket: str) -> None:
    """The edges belong to the lower bucket."""
    assert temperature_bucket(temperature) == bucket


def test_sample_keeps_proportions_and_order() -> None:
    """A half keeps each task's share exactly and the original order of the requests."""
    sample = _workload("aabbbbab" * 4).sample(16, seed=3)
    assert Counter(request.task for request in sample.requests) == {"a": 6, "b": 10}
    positions = [int(request.request_id.removeprefix("line-")) for request in sample.requests]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("tasks", "n", "expected"),
    [
        ("aaabbbccd", 3, {"a": 1, "b": 1, "c": 1}),
        ("aaabbbccd", 4, {"a": 1, "b": 1, "c": 1, "d": 1}),
        ("bbaa", 3, {"a": 2, "b": 1}),
    ],
)
def test_sample_gives_the_rest_to_largest_remainders(
    tasks: str, n: int, expected: dict[str, int]
) -> None:
    """What does not divide goes to the tasks that lost most by rounding, ties by name."""
    assert Counter(request.task for request in _workload(tasks).sample(n, 0).requests) == expected


def test_sample_is_deterministic_and_seeded() -> None:
    """The same seed gives the same requests, another seed others, each with its fingerprint."""
    workload = load_workload(None)
    once, again, other = workload.sample(16, 1), workload.sample(16, 1), workload.sample(16, 2)
    assert once == again
    assert once.fingerprint != other.fingerprint
    assert once.fingerprint == fingerprint(once.requests)
    assert once.source == "default"
    assert set(once.requests) < set(workload.sample(32, 1).requests)


def test_sample_limits() -> None:
    """All requests or more give the workload itself; none is refused."""
    workload = _workload("abc")
    assert workload.sample(3, 0) is workload
    assert workload.sample(9, 0) is workload
    with pytest.raises(ValueError, match="n = 0"):
        workload.sample(0, 0)


def test_empty_workload_is_refused() -> None:
    """There is nothing to measure on no requests."""
    with pytest.raises(ValueError, match="at least one"):
        Workload(source="file:x", fingerprint="f", requests=(), skipped={})

"""Interleaved blocks and the figures made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.benchmarks.contest import OURS, Result, Run, Task, run_blocks
from tests.benchmarks.engine_report import floor_share
from tests.benchmarks.spread import Spread

TASK = Task(name="batch 1", batch=1, prompts=((5, 6),), max_tokens=2)


class Entrant:
    """Answers at once and writes its name down."""

    def __init__(self, name: str, asked: list[str], rate: float) -> None:
        self.name = name
        self.asked = asked
        self.rate = rate

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The rate, and the prompts as answers."""
        self.asked.append(self.name)
        return {
            "decode_tokens_per_s": self.rate,
            "total_tokens_per_s": self.rate / 2,
            "outputs": command["prompts"],
        }


def result(ours: list[float], theirs: list[float], **other: Any) -> Result:
    """A task measured with these decode rates."""
    runs = {
        name: [
            Run(
                decode_tokens_per_s=rate,
                total_tokens_per_s=rate,
                outputs=((1, 2), tuple(name.encode())),
            )
            for rate in rates
        ]
        for name, rates in ((OURS, ours), ("vllm", theirs))
    }
    return Result(task=TASK, runs=runs, **other)


def test_every_block_runs_every_contestant_once_in_changing_order() -> None:
    """Nobody always goes first."""
    asked: list[str] = []
    peers = {name: Entrant(name, asked, 1.0) for name in (OURS, "vllm")}
    run_blocks([(TASK, peers)], 10, lambda text: None, with_bandwidth="")
    blocks = [tuple(asked[i : i + 2]) for i in range(0, 20, 2)]
    assert set(blocks) == {(OURS, "vllm"), ("vllm", OURS)}


def test_rates_land_with_their_contestant() -> None:
    """Whatever the order was."""
    peers = {OURS: Entrant(OURS, [], 3.0), "vllm": Entrant("vllm", [], 2.0)}
    (found,) = run_blocks([(TASK, peers)], 3, lambda text: None, with_bandwidth="")
    assert found.decode(OURS) == [3.0] * 3
    assert found.total("vllm") == [1.0] * 3
    assert found.decode_ratio("vllm") == Spread(1.5, 1.5, 1.5)


def test_answers_are_compared_one_by_one() -> None:
    """The second answer differs."""
    assert result([1.0], [1.0]).equal_answers("vllm") == 1


def test_the_floor_is_taken_from_the_bandwidth_of_the_same_block() -> None:
    """Reading 100 bytes at 1,000 bytes/s takes half of a step of 0.2 s."""
    measured = result([5.0, 10.0], [1.0, 1.0], read_bandwidths=[1000.0, 2000.0])
    share = floor_share(measured, 100)
    assert (share.low, share.high) == pytest.approx((0.5, 0.5))

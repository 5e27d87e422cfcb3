"""What is answered and what is held out: no prompt on both sides, no answer twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autotune.errors import TrafficError
from autotune.progress import Silent
from autotune.traffic.records import Message, SampledRequest
from autotune.traffic.workload import Workload, fingerprint
from autotune.training.prompts import (
    answer_plan,
    heldout_plan,
    prompt_digest,
    split_by_prompt,
    without_heldout,
)
from engine.request import Request
from tests.support.tiny_models import request


def workload(num_prompts: int, temperatures: tuple[float, ...] = (0.0, 1.0)) -> Workload:
    """Every prompt at every temperature."""
    requests = tuple(
        SampledRequest(request_id=f"{i}-{t}", prompt=f"prompt {i}", temperature=t)
        for i in range(num_prompts)
        for t in temperatures
    )
    return Workload(
        source="file:a", fingerprint=fingerprint(requests), requests=requests, skipped={}
    )


def prompts(found: Workload) -> set[str]:
    """The distinct prompts."""
    return {prompt_digest(r) for r in found.requests}


@pytest.mark.parametrize(("num_prompts", "held"), [(2, 1), (20, 2), (100, 10)])
def test_split_by_prompt(num_prompts: int, held: int) -> None:
    """A share of the prompts, at least one, with all their requests; nothing is lost."""
    whole = workload(num_prompts)
    asked, heldout = split_by_prompt(whole, 0.1, seed=0)
    assert len(prompts(heldout)) == held
    assert not prompts(asked) & prompts(heldout)
    assert sorted(r.request_id for r in (*asked.requests, *heldout.requests)) == sorted(
        r.request_id for r in whole.requests
    )
    assert len(heldout.requests) == 2 * held
    assert asked.fingerprint == fingerprint(asked.requests)


def test_the_seed_gives_the_split() -> None:
    """The same one again, or another."""
    whole = workload(100)
    first = split_by_prompt(whole, 0.1, seed=0)
    assert split_by_prompt(whole, 0.1, seed=0) == first
    assert split_by_prompt(whole, 0.1, seed=1) != first


def test_one_prompt_cannot_be_split() -> None:
    """The message says what to do."""
    with pytest.raises(TrafficError, match="name a file of held-out requests"):
        split_by_prompt(workload(1), 0.1, seed=0)


def test_held_out_prompts_are_not_learned_from() -> None:
    """Whatever their temperature; it is said how many."""
    progress = Silent()
    whole, heldout = workload(5), workload(2, (0.5,))
    left = without_heldout(whole, heldout, progress)
    assert len(left.requests) == 6
    assert not prompts(left) & prompts(heldout)
    assert progress.notes == [
        "4 requests left out of training: their prompts are held out",
    ]
    assert without_heldout(left, heldout, progress) is left
    with pytest.raises(TrafficError, match="every prompt is held out"):
        without_heldout(heldout, whole, progress)


def test_a_prompt_is_its_conversation() -> None:
    """Roles count, sampling settings do not."""
    asked = SampledRequest(request_id="a", messages=(Message(role="user", content="x"),))
    assert prompt_digest(asked) == prompt_digest(replace(asked, temperature=0.1, max_tokens=3))
    told = replace(asked, messages=(Message(role="system", content="x"),))
    assert prompt_digest(asked) != prompt_digest(told)


def asked(*temperatures: float) -> list[Request]:
    """One prompt per temperature, longer ones first."""
    return [
        request((1,) * (9 - index), name=str(index), temperature=t, top_p=0.9, top_k=5)
        for index, t in enumerate(temperatures)
    ]


def test_every_prompt_at_every_temperature() -> None:
    """Three turns through three temperatures: each combination once, all seeds different."""
    plan = answer_plan(asked(0.0, 0.7, 1.0), seed=0)
    found = Counter((len(r.prompt_tokens), r.params.temperature) for r in plan)
    assert found == {(n, t): 1 for n in (9, 8, 7) for t in (0.0, 0.7, 1.0)}
    assert len({r.params.seed for r in plan}) == len({r.request_id for r in plan}) == 9
    assert {(r.params.top_p, r.params.top_k) for r in plan} == {(1.0, 0)}
    first = {r.request_id: r.params.temperature for r in plan if r.request_id.startswith("0-")}
    assert first == {"0-0": 0.0, "0-1": 0.7, "0-2": 1.0}


def test_greedy_answers_are_not_repeated() -> None:
    """A second greedy answer is the first one; a second sampled one is not."""
    assert len(answer_plan(asked(0.0, 0.0), seed=0)) == 2
    assert len(answer_plan(asked(0.7, 0.7), seed=0)) == 6


def test_neighbours_are_of_similar_length() -> None:
    """Shorter prompts first, within a turn."""
    lengths = [len(r.prompt_tokens) for r in answer_plan(asked(0.7, 0.7, 0.7), seed=0)]
    assert lengths == [7, 8, 9] * 3


def test_held_out_requests_keep_their_temperature() -> None:
    """Each once, at plain temperatures: that is the law the score takes."""
    plan = heldout_plan(asked(0.0, 0.7))
    assert {(r.request_id, r.params.temperature) for r in plan} == {("0", 0.0), ("1", 0.7)}
    assert {(r.params.top_p, r.params.top_k) for r in plan} == {(1.0, 0)}

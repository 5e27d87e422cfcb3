"""Which requests are answered for training and which are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import TrafficError
from autotune.progress import Progress
from autotune.traffic.records import SampledRequest
from autotune.traffic.workload import Workload, fingerprint
from autotune.tuning.seeds import derive_seed
from engine.request import Request

_PASSES = 3
_SORTED_TOGETHER = 400


def split_by_prompt(workload: Workload, share: float, seed: int) -> tuple[Workload, Workload]:
    """Training and held-out requests; one prompt is never on both sides.

    Args:
        workload: What to split.
        share: Of the distinct prompts, to hold out.
        seed: Another seed gives another split.

    Raises:
        TrafficError: All requests have the same prompt.
    """
    prompts = {prompt_digest(request) for request in workload.requests}
    if len(prompts) < 2:
        raise TrafficError(
            f"{workload.source}: one prompt cannot be split: name a file of held-out requests"
        )
    ranked = sorted(prompts, key=lambda p: hashlib.sha256(f"{seed}:{p}".encode()).digest())
    held = set(ranked[: max(1, round(share * len(ranked)))])
    return (
        _part(workload, [r for r in workload.requests if prompt_digest(r) not in held]),
        _part(workload, [r for r in workload.requests if prompt_digest(r) in held]),
    )


def without_heldout(workload: Workload, heldout: Workload, progress: Progress) -> Workload:
    """The requests whose prompts are not held out.

    Raises:
        TrafficError: None is left.
    """
    held = {prompt_digest(request) for request in heldout.requests}
    kept = [r for r in workload.requests if prompt_digest(r) not in held]
    if not kept:
        raise TrafficError(f"{workload.source}: every prompt is held out: nothing to learn from")
    if len(kept) == len(workload.requests):
        return workload
    progress.note(
        f"{len(workload.requests) - len(kept)} requests left out of training: their prompts are "
        "held out"
    )
    return _part(workload, kept)


def prompt_digest(request: SampledRequest) -> str:
    """SHA-256 of what is asked, whatever the sampling settings."""
    asked = (request.prompt, [(m.role, m.content) for m in request.messages])
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def answer_plan(requests: Sequence[Request], seed: int) -> list[Request]:
    """What to answer for training, in order; time may end before the list does.

    Every prompt comes up to three times, each time at the next of the temperatures that occur in
    the requests: answers at several temperatures teach more than repetitions. A greedy answer is
    not asked for twice. Answers are drawn without top-p and top-k, since the loss and the score
    take the target's law at a temperature alone.
    """
    temperatures = sorted({request.params.temperature for request in requests})
    plan: list[Request] = []
    for turn in range(_PASSES):
        asked = []
        for index, request in enumerate(requests):
            place = temperatures.index(request.params.temperature)
            temperature = temperatures[(place + turn) % len(temperatures)]
            if temperature == 0.0 and turn >= len(temperatures):
                continue
            params = replace(
                request.params,
                temperature=temperature,
                top_p=1.0,
                top_k=0,
                seed=derive_seed(seed, "answer", turn, index),
            )
            asked.append(replace(request, request_id=f"{turn}-{index}", params=params))
        plan += _by_length(asked)
    return plan


def heldout_plan(requests: Sequence[Request]) -> list[Request]:
    """Every held-out request once, at its own temperature, without top-p and top-k."""
    return _by_length([replace(r, params=replace(r.params, top_p=1.0, top_k=0)) for r in requests])


def _by_length(requests: list[Request]) -> list[Request]:
    """Neighbours of similar length, without moving any request far."""
    return [
        request
        for start in range(0, len(requests), _SORTED_TOGETHER)
        for request in sorted(
            requests[start : start + _SORTED_TOGETHER], key=lambda r: len(r.prompt_tokens)
        )
    ]


def _part(workload: Workload, requests: list[SampledRequest]) -> Workload:
    return replace(workload, requests=tuple(requests), fingerprint=fingerprint(requests))

"""The same checkpoints in a real vLLM: acceptance by position beside ours, on vLLM's answers.

Replay scores our drafter along the very answers that vLLM gave, so that only the luck of the
acceptance tests lies between the two figures; greedy answers leave not even that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autotune.progress import Progress
from autotune.tuning.session import Session
from engine.drafters.base import Drafter
from engine.drafters.profiling import profile
from engine.engine import Engine
from engine.kernels.sampling import processed_probs
from engine.kv_cache import KvSnapshot
from engine.layout import make_layout
from engine.record import TargetFeatures, Trajectory
from engine.replay import replay
from engine.request import FinishReason, Request
from engine.training.export import assemble
from tests.benchmarks.vllm_peer import VllmCounts, VllmJob, VllmRequest, run_vllm

_K = 3
_MAX_TOKENS = 64
_PER_CELL = 12  # about 2,000 rounds at each temperature: a standard error of one point
_TIMEOUT_S = 1200.0
_NO_KEYS = KvSnapshot(torch.empty(0), torch.empty(0))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Acceptance in both engines.

    Attributes:
        rows: One per drafter and temperature.
        error_max: Largest difference at any position of any row.
    """

    rows: list[dict[str, object]]
    error_max: float


def compare_with_vllm(
    python: Path,
    session: Session,
    shipped: Mapping[str, Path],
    scratch: Path,
    progress: Progress,
) -> Comparison:
    """Run the shipped drafters in vLLM and replay ours on its answers.

    Args:
        python: Interpreter with vLLM.
        session: Its engine is idle; its requests are asked again.
        shipped: Folder of each drafter.
        scratch: For the jobs, and for drafts made whole.
        progress: Told about every drafter.
    """
    progress.begin("Compare with vLLM")
    requests = _some_of_each(session)
    rows: list[dict[str, object]] = []
    errors = [0.0]
    for index, (name, folder) in enumerate(sorted(shipped.items())):
        progress.update(index / len(shipped), name)
        spec = session.specs[name]
        if spec.method == "draft_model":
            assemble(folder, session.target.folder, scratch / name)
            folder = scratch / name
        job = VllmJob(
            model=session.target.folder,
            drafter={"method": spec.method, "model": str(folder)},
            num_speculative_tokens=_K,
            requests=tuple(
                VllmRequest(
                    prompt_tokens=request.prompt_tokens, temperature=request.params.temperature
                )
                for request in requests
            ),
            max_tokens=_MAX_TOKENS,
            timeout_s=_TIMEOUT_S,
        )
        for counts in run_vllm(python, job, scratch):
            asked = [r for r in requests if r.params.temperature == counts.temperature]
            ours = _replayed(session.engine, session.drafters[name], asked, counts)
            theirs = counts.accepted_per_pos_inside
            errors += [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
            rows.append(
                {
                    "drafter": name,
                    "temperature": counts.temperature,
                    "ours_accepted_per_pos": ours,
                    "vllm_accepted_per_pos": theirs,
                    "vllm_num_drafts": counts.num_drafts,
                    "vllm_tokens_per_s": counts.num_emitted_tokens / counts.seconds,
                }
            )
    return Comparison(rows, max(errors))


def _some_of_each(session: Session) -> list[Request]:
    """The first requests of every task and temperature."""
    taken: dict[tuple[str, float], int] = {}
    chosen = []
    for trajectory in session.trajectories:
        request = trajectory.request
        cell = (request.task, request.params.temperature)
        taken[cell] = taken.get(cell, 0) + 1
        if taken[cell] <= _PER_CELL:
            chosen.append(request)
    return chosen


def _replayed(
    engine: Engine, drafter: Drafter, requests: list[Request], counts: VllmCounts
) -> tuple[float, ...]:
    """[K] our drafter's acceptance along vLLM's answers."""
    profiles = []
    for request, answer in zip(requests, counts.answers, strict=True):
        trajectory = _scored(engine, request, answer.output_tokens, drafter.feature_layers)
        rows, _ = profile(drafter, trajectory, (None,), max_drafts=_K, max_len=engine.max_len)
        profiles += rows
    found = replay(profiles, _K)
    rounds = found.num_rounds_by_drafts[:, 1:].sum()
    return tuple((found.num_accepted_per_pos.sum(dim=0) / rounds).tolist())


@torch.inference_mode()
def _scored(
    engine: Engine, request: Request, output: tuple[int, ...], layers: tuple[int, ...]
) -> Trajectory:
    """An answer of another engine, with our target's law and states at its tokens."""
    tokens = [*request.prompt_tokens, *output[:-1]]
    target = engine.target
    layout = make_layout([0], [0], [len(tokens)], device=target.device)
    flat = torch.tensor(tokens, device=target.device)
    hidden, states = target.forward_with_features(flat, layout, engine.cache, layers)
    params = request.params
    log_probs: tuple[float, ...] = (0.0,) * (len(output) - 1)
    if not params.is_greedy and len(output) > 1:
        logits = target.logits(hidden[len(request.prompt_tokens) :])
        count = logits.shape[0]
        law = processed_probs(
            logits, [params.temperature] * count, [params.top_k] * count, [params.top_p] * count
        )
        chosen = law.gather(1, torch.tensor(output[1:]).unsqueeze(1)).squeeze(1)
        log_probs = tuple(chosen.double().log().tolist())
    return Trajectory(
        request=Request(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            params=replace(params, max_tokens=_MAX_TOKENS),
            task=request.task,
        ),
        output_tokens=output,
        log_probs=log_probs,
        finish_reason=FinishReason.LENGTH,
        snapshot=_NO_KEYS,
        features=TargetFeatures(layers, states),
    )

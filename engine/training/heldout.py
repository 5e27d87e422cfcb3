"""The progress that counts: tokens per round on answers that training never sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.kv_cache import KvSnapshot
from engine.profile import StartProfile
from engine.record import TargetFeatures, Trajectory
from engine.replay import Replay, replay
from engine.request import FinishReason, Request
from engine.sampling import SamplingParams
from engine.training.corpus import Example
from engine.training.teacher import Teacher

Bucket = tuple[str, float]
"""Task and temperature of a request."""

_NO_KEYS = KvSnapshot(torch.empty(0), torch.empty(0))


@dataclass(frozen=True, slots=True)
class Score:
    """How a drafter does on held-out answers.

    Attributes:
        replays: Expected counts by bucket.
    """

    replays: dict[Bucket, Replay]

    @property
    def tokens_per_round(self) -> float:
        """Mean over the buckets: no task counts for more because its answers are longer."""
        values = [counts.tokens_per_round for counts in self.replays.values()]
        return sum(values) / len(values)

    def by_task(self) -> dict[str, float]:
        """Mean over the temperatures of each task."""
        values: dict[str, list[float]] = defaultdict(list)
        for (task, _), counts in self.replays.items():
            values[task].append(counts.tokens_per_round)
        return {task: sum(found) / len(found) for task, found in sorted(values.items())}


def to_trajectories(
    examples: Sequence[Example], teacher: Teacher, feature_layers: tuple[int, ...]
) -> list[Trajectory]:
    """Held-out answers as the replay wants them; for scoring only, they hold no keys.

    Args:
        examples: Answers with at least one decoded token.
        teacher: The target, for the law of its answers.
        feature_layers: The layers of `Example.states`; the last is the final state.
    """
    trajectories = []
    for index, example in enumerate(examples):
        tokens = example.tokens.tolist()
        output = tuple(tokens[example.prompt_len :])
        trajectories.append(
            Trajectory(
                request=Request(
                    request_id=str(index),
                    prompt_tokens=tuple(tokens[: example.prompt_len]),
                    params=SamplingParams(temperature=example.temperature, max_tokens=len(output)),
                    task=example.task,
                ),
                output_tokens=output,
                log_probs=_log_probs(example, teacher),
                finish_reason=FinishReason.LENGTH,
                snapshot=_NO_KEYS,
                features=TargetFeatures(feature_layers, example.states.float()),
            )
        )
    return trajectories


def score(
    profile: Callable[[Trajectory], StartProfile],
    trajectories: Sequence[Trajectory],
    num_speculative_tokens: int,
) -> Score:
    """Replay a drafter on held-out answers.

    Args:
        profile: The drafter, as a way to score one answer.
        trajectories: The answers.
        num_speculative_tokens: K.
    """
    found: dict[Bucket, list[StartProfile]] = defaultdict(list)
    for trajectory in trajectories:
        request = trajectory.request
        found[request.task, request.params.temperature].append(profile(trajectory))
    return Score(
        {bucket: replay(rows, num_speculative_tokens) for bucket, rows in sorted(found.items())}
    )


@torch.inference_mode()
def _log_probs(example: Example, teacher: Teacher) -> tuple[float, ...]:
    """Log p of every answer token but the first, at the answer's temperature; 0 when greedy."""
    answer = example.tokens[example.prompt_len + 1 :]
    if example.temperature == 0.0:
        return (0.0,) * answer.shape[0]
    final = example.states[example.prompt_len :, -teacher.config.hidden_size :].float()
    law = (final @ teacher.output_rows.T / example.temperature).log_softmax(dim=-1)
    return tuple(law.gather(1, answer.unsqueeze(1)).squeeze(1).tolist())

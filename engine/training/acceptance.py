"""What a finished drafter achieves on held-out answers, for every K, task and temperature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.profile import StartProfile
from engine.record import Trajectory
from engine.replay import replay
from engine.training.heldout import Bucket

MAX_K = 8
"""Draft tokens a round may have in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow:
    """One K on the held-out answers of one task at one temperature.

    Attributes:
        task: Task of the requests.
        temperature: Their temperature.
        num_answers: How many there were.
        num_speculative_tokens: K.
        tokens_per_round: Bonus included.
        std_error: Jackknife over the answers; None with fewer than two.
        accepted_per_pos: [K] accepted drafts at each position per round.
    """

    task: str
    temperature: float
    num_answers: int
    num_speculative_tokens: int
    tokens_per_round: float
    std_error: float | None
    accepted_per_pos: tuple[float, ...]


def acceptance_table(
    profile: Callable[[Trajectory], StartProfile],
    trajectories: Sequence[Trajectory],
    *,
    on_answer: Callable[[int], None] | None = None,
) -> tuple[AcceptanceRow, ...]:
    """Replay a drafter on held-out answers for K = 1..`MAX_K`.

    Args:
        profile: The drafter, as a way to score one answer with `MAX_K` drafts.
        trajectories: The answers, each with a decode round.
        on_answer: Told how many answers are done.

    Returns:
        By task, temperature and K.
    """
    found: dict[Bucket, list[StartProfile]] = defaultdict(list)
    for done, trajectory in enumerate(trajectories, start=1):
        request = trajectory.request
        found[request.task, request.params.temperature].append(profile(trajectory))
        if on_answer is not None:
            on_answer(done)
    rows = []
    for (task, temperature), profiles in sorted(found.items()):
        for k in range(1, MAX_K + 1):
            counts = replay(profiles, k)
            per_pos = counts.num_accepted_per_pos.sum(dim=0) / counts.num_rounds.sum()
            rows.append(
                AcceptanceRow(
                    task=task,
                    temperature=temperature,
                    num_answers=len(profiles),
                    num_speculative_tokens=k,
                    tokens_per_round=counts.tokens_per_round,
                    std_error=counts.tokens_per_round_std_error,
                    accepted_per_pos=tuple(per_pos.tolist()),
                )
            )
    return tuple(rows)

"""The engine's own counts of speculative rounds, request by request, beside replayed ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import torch

from engine.drafters.base import Drafter
from engine.drafters.model import ModelDrafter
from engine.drafters.profiling import profile
from engine.engine import Engine, RowOutcome
from engine.profile import StartProfile, profile_tokens
from engine.record import Trajectory
from engine.request import Request
from policies.types import VerificationRule


@dataclass(slots=True)
class Counts:
    """What the rounds of one request did."""

    num_tokens: int = 0
    num_rounds: int = 0
    by_drafts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    per_pos: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, outcome: RowOutcome) -> None:
        """Count a round."""
        self.num_tokens += outcome.num_emitted
        self.num_rounds += 1
        self.by_drafts[outcome.num_drafted] += 1
        for position in range(outcome.num_accepted):
            self.per_pos[position] += 1


def measured(
    engine: Engine,
    requests: Sequence[Request],
    *,
    batch_size: int,
    num_speculative_tokens: int,
    draft_temperature: float | None = None,
    rule: VerificationRule = VerificationRule.RATIO,
) -> list[Counts]:
    """Answer requests with the loaded drafter and count, per request."""
    counts = {request.request_id: Counts() for request in requests}

    def on_round(outcomes: list[RowOutcome]) -> None:
        for outcome in outcomes:
            counts[engine.sequences[outcome.slot].request.request_id].add(outcome)

    engine.generate(
        list(requests),
        batch_size=batch_size,
        num_speculative_tokens=num_speculative_tokens,
        draft_temperature=draft_temperature,
        rule=rule,
        on_round=on_round,
    )
    return [counts[request.request_id] for request in requests]


def model_profiles(
    drafter: ModelDrafter,
    trajectory: Trajectory,
    draft_temperatures: Sequence[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> list[StartProfile]:
    """One profile per draft temperature, from one forced pass of the draft."""
    if trajectory.num_decoded:
        logits = drafter.teacher_forced_logits(
            trajectory.request.prompt_tokens, trajectory.output_tokens, trajectory.snapshot
        )
    else:
        logits = torch.empty(0, 0)
    return profile_tokens(
        logits, trajectory, draft_temperatures, max_drafts=max_drafts, max_len=max_len
    )


def profiles(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    *,
    max_drafts: int,
    max_len: int,
    draft_temperature: float | None = None,
) -> list[StartProfile]:
    """One profile per trajectory, by whichever road the drafter takes."""
    found = []
    for trajectory in trajectories:
        rows, _ = profile(
            drafter, trajectory, [draft_temperature], max_drafts=max_drafts, max_len=max_len
        )
        found.append(rows[0])
    return found


def tokens_per_round(counts: Sequence[Counts]) -> tuple[float, float]:
    """Ratio of sums over requests, and its standard error by linearisation over requests."""
    rounds = sum(count.num_rounds for count in counts)
    ratio = sum(count.num_tokens for count in counts) / rounds
    spread = sum((count.num_tokens - ratio * count.num_rounds) ** 2 for count in counts)
    n = len(counts)
    return ratio, sqrt(spread * n / (n - 1)) / rounds

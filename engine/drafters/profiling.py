"""Profiling any drafter on a recorded answer, each kind in its own way."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drafters.base import Drafter, DrafterSnapshot
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.model import ModelDrafter
from engine.profile import StartProfile, profile_rollouts, profile_steps, profile_tokens
from engine.record import Trajectory


def samples_drafts(drafter: Drafter) -> bool:
    """Whether a drafter draws from a distribution: then temperature matters, and K costs time."""
    return isinstance(drafter, ModelDrafter | Eagle3Drafter)


def profile(
    drafter: Drafter,
    trajectory: Trajectory,
    draft_temperatures: Sequence[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> tuple[list[StartProfile], DrafterSnapshot | None]:
    """What a drafter achieves on one answer, and its own state at the end of it.

    Args:
        drafter: Slot 0 is used.
        trajectory: The recorded answer.
        draft_temperatures: As in `Drafter.propose`; `(None,)` for deterministic drafters.
        max_drafts: K_max.
        max_len: Positions a slot of the engine holds.

    Returns:
        One profile per draft temperature, and a snapshot where the drafter has one.

    Raises:
        EngineError: The drafter fails on this answer.
    """
    if trajectory.num_decoded < 1 or not samples_drafts(drafter):
        # An answer of one token has no rounds, whoever drafts.
        once = profile_rollouts(drafter, trajectory, max_drafts=max_drafts, max_len=max_len)
        return [once] * len(draft_temperatures), None
    if isinstance(drafter, Eagle3Drafter):
        profiles = profile_steps(
            drafter.forced_logits(trajectory, max_drafts),
            drafter.columns,
            trajectory,
            draft_temperatures,
            max_drafts=max_drafts,
            max_len=max_len,
        )
        return profiles, drafter.snapshot_of(trajectory)
    assert isinstance(drafter, ModelDrafter)
    blocks = drafter.forced_blocks(
        trajectory.request.prompt_tokens, trajectory.output_tokens, trajectory.snapshot
    )
    profiles = profile_tokens(
        blocks, trajectory, draft_temperatures, max_drafts=max_drafts, max_len=max_len
    )
    return profiles, drafter.snapshot(0)

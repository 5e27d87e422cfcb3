"""What a drafter achieves from every start of a recorded answer, forced along that answer.

Three kinds of drafters need three ways: those whose distribution depends on the tokens alone,
those whose drafts depend on where the round began, and deterministic ones. None needs a pass of
the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor

from engine.drafters.base import Drafter
from engine.kernels.sampling import best_tokens, processed_probs
from engine.record import Trajectory


@dataclass(frozen=True, slots=True)
class StartProfile:
    """What a drafter achieves from every start position of one trajectory.

    Attributes:
        survival: [n, K_max] float64, W_t(j) for j = 1..K_max; 0 beyond the end of the answer.
        num_proposed: [n] int64, draft tokens the round would verify (at most K_max).
    """

    survival: Tensor
    num_proposed: Tensor


def profile_tokens(
    logits: Tensor,
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> list[StartProfile]:
    """Profile a drafter whose distribution depends on the tokens alone.

    Args:
        logits: [n, target vocab] for every output token but the first, given those before it.
        trajectory: The recorded answer.
        draft_temperatures: As in `Drafter.propose`.
        max_drafts: K_max.
        max_len: Positions a slot of the engine holds.

    Returns:
        One profile per draft temperature.

    Raises:
        NumericError: The logits are not finite.
    """
    limits = _limits(trajectory, max_drafts, max_len)
    if not limits:
        return [_empty(max_drafts)] * len(draft_temperatures)
    wanted = torch.tensor(trajectory.output_tokens[1:], device=logits.device)
    profiles = []
    for accept in _acceptances(logits, wanted, trajectory, draft_temperatures):
        padded = torch.cat((accept, torch.zeros(max_drafts, dtype=torch.float64)))
        windows = padded.unfold(0, max_drafts, 1)[: len(limits)]
        profiles.append(StartProfile(windows.cumprod(dim=1), torch.tensor(limits)))
    return profiles


def profile_steps(
    steps: Iterable[Tensor],
    columns: Tensor,
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> list[StartProfile]:
    """Profile a drafter whose distribution also depends on where the round began.

    Args:
        steps: For step j < K_max, logits [n - j, columns]: row i is the draft of output token
            i + j + 1 by a round that starts after i + 1 output tokens.
        columns: [columns] int64, ascending: the target id of each column.
        trajectory: The recorded answer.
        draft_temperatures: As in `Drafter.propose`.
        max_drafts: K_max.
        max_len: Positions a slot of the engine holds.

    Returns:
        One profile per draft temperature.

    Raises:
        NumericError: Logits are not finite.
    """
    limits = _limits(trajectory, max_drafts, max_len)
    if not limits:
        return [_empty(max_drafts)] * len(draft_temperatures)
    count = len(limits)
    tokens = torch.tensor(trajectory.output_tokens[1:], device=columns.device)
    found = torch.searchsorted(columns, tokens).clamp(max=columns.shape[0] - 1)
    wanted = torch.where(columns[found] == tokens, found, -1)
    shape = (len(draft_temperatures), count, max_drafts)
    accept = torch.zeros(shape, dtype=torch.float64)
    for step, logits in enumerate(steps):
        rows = _acceptances(logits, wanted[step:], trajectory, draft_temperatures, step)
        for index, row in enumerate(rows):
            accept[index, : count - step, step] = row
    return [StartProfile(rows.cumprod(dim=1), torch.tensor(limits)) for rows in accept]


def profile_rollouts(
    drafter: Drafter, trajectory: Trajectory, *, max_drafts: int, max_len: int
) -> StartProfile:
    """Profile a deterministic drafter whose proposal depends on where the round starts.

    Args:
        drafter: Proposals must be deterministic; slot 0 is used.
        trajectory: The recorded answer.
        max_drafts: K_max; shorter K must give prefixes of the same proposal.
        max_len: Positions a slot of the engine holds.
    """
    output = trajectory.output_tokens
    limits = _limits(trajectory, max_drafts, max_len)
    survival = torch.zeros(len(limits), max_drafts, dtype=torch.float64)
    num_proposed = torch.zeros(len(limits), dtype=torch.int64)
    nothing = torch.empty(0, 0)
    if not limits:
        return StartProfile(survival, num_proposed)
    sequence = trajectory.resume_at(1)
    drafter.admit(0, sequence, nothing)
    for start, limit in enumerate(limits, start=1):
        draft = drafter.propose([0], [sequence], [limit], None).tokens[0] if limit else []
        matched = 0
        while (
            matched < len(draft)
            and start + matched < len(output)
            and draft[matched] == output[start + matched]
        ):
            matched += 1
        survival[start - 1, :matched] = 1.0
        num_proposed[start - 1] = len(draft)
        sequence.tokens.append(output[start])
        drafter.ingest(0, sequence, nothing)
    return StartProfile(survival, num_proposed)


def _limits(trajectory: Trajectory, max_drafts: int, max_len: int) -> list[int]:
    """Draft tokens allowed at each start, capped as in the engine."""
    return [
        min(max_drafts, trajectory.resume_at(start).max_drafts(max_len))
        for start in range(1, len(trajectory.output_tokens))
    ]


def _empty(max_drafts: int) -> StartProfile:
    """The profile of an answer without decode rounds."""
    return StartProfile(
        torch.zeros(0, max_drafts, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    )


def _acceptances(
    logits: Tensor,
    wanted: Tensor,
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    skip: int = 0,
) -> list[Tensor]:
    """min(1, q / p) of each wanted column, or 1 where the greedy draft is it.

    Args:
        logits: [n, columns].
        wanted: [n] int64; -1 where no column is the token.
        trajectory: Gives p of the output tokens after the first `skip + 1`.
        draft_temperatures: As in `Drafter.propose`.
        skip: How many output tokens further than the second the rows begin.

    Returns:
        [n] float64 on the CPU, where profiles live, for each draft temperature.
    """
    params = trajectory.request.params
    greedy = (best_tokens(logits) == wanted).double().cpu()
    target = torch.tensor([exp(v) for v in trajectory.log_probs[skip:]], dtype=torch.float64)
    accepted = []
    for temperature in draft_temperatures:
        used = params.temperature if temperature is None else temperature
        if params.is_greedy or used == 0.0:
            accepted.append(greedy)
            continue
        count = logits.shape[0]
        probs = processed_probs(
            logits, [used] * count, [params.top_k] * count, [params.top_p] * count
        )
        drafted = probs.gather(1, wanted.clamp(min=0).unsqueeze(1)).squeeze(1)
        drafted = torch.where(wanted >= 0, drafted, 0.0).double().cpu()
        accepted.append((drafted / target).clamp(max=1.0))
    return accepted

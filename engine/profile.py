"""What a drafter achieves from every start of a recorded answer, forced along that answer.

Three kinds of drafters need three ways: those whose distribution depends on the tokens alone,
those whose drafts depend on where the round began, and deterministic ones. None needs a pass of
the target, and one pass of the drafter serves every verification rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from engine.drafters.base import Drafter
from engine.kernels.sampling import best_tokens, processed_probs
from engine.record import Trajectory
from policies.types import VerificationRule


@dataclass(frozen=True, slots=True)
class StartProfile:
    """What a drafter achieves from every start position of one trajectory.

    W_t(j) is the chance that a round starting at t accepts its first j drafts, given that the
    answer is y. It needs nothing of the target but p(y_i). Let r_i = q(y_i) / p(y_i) be the ratios
    along the round:

    - Delta rule: 1 as long as the drafts are those of y.
    - Ratio rule: prod_{i <= j} min(1, r_i).
    - Block rule: min(1, r_1, r_1 r_2, ..., r_1...r_j), a running minimum. For: a round drafts
      exactly y_1..y_j and accepts at least as many with probability q(y_1)...q(y_j) P_j, where
      P_j = min(1, P_{j-1} / r_j) = min_{m <= j} 1 / (r_{m+1}...r_j) (`engine.verify_block`); the
      token after j accepted drafts, drafted or recovered, has the law p, and so has all that
      follows; so Bayes' rule divides by p(y_1)...p(y_j), and r_1...r_j P_j is that minimum.

    Every factor of the ratio rule is at most every ratio, so its W is never above the block rule's.

    Attributes:
        survival: [n, K_max] float64, W_t(j) for j = 1..K_max under the ratio rule, or the delta
            rule where the drafts are deterministic; 0 beyond the end of the answer.
        num_proposed: [n] int64, draft tokens the round would verify (at most K_max).
        block_survival: The same under the block rule; None where the drafts are deterministic.
    """

    survival: Tensor
    num_proposed: Tensor
    block_survival: Tensor | None = None

    def survival_by(self, rule: VerificationRule) -> Tensor:
        """[n, K_max] float64, W_t(j) under a rule."""
        if rule is VerificationRule.BLOCK and self.block_survival is not None:
            return self.block_survival
        return self.survival


def profile_tokens(
    logits: Tensor | Iterable[Tensor],
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> list[StartProfile]:
    """Profile a drafter whose distribution depends on the tokens alone.

    Args:
        logits: [n, target vocab] for every output token but the first, given those before it; or
            blocks of these rows in order, of which one at a time is looked at.
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
    tokens = torch.tensor(trajectory.output_tokens[1:])
    parts: list[list[_LogRatios]] = []
    done = 0
    for block in [logits] if isinstance(logits, Tensor) else logits:
        wanted = tokens[done : done + block.shape[0]].to(block.device)
        parts.append(_log_ratios(block, wanted, trajectory, draft_temperatures, done))
        done += block.shape[0]
    beyond = torch.full((max_drafts,), -inf, dtype=torch.float64)
    profiles = []
    for found in zip(*parts, strict=True):
        row = torch.cat((*(ratios.values for ratios in found), beyond))
        windows = row.unfold(0, max_drafts, 1)[: len(limits)]
        profiles.append(_start_profile(_LogRatios(windows, found[0].deterministic), limits))
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
    windows = torch.full(shape, -inf, dtype=torch.float64)
    deterministic = [False] * len(draft_temperatures)
    for step, logits in enumerate(steps):
        every = _log_ratios(logits, wanted[step:], trajectory, draft_temperatures, step)
        for index, ratios in enumerate(every):
            windows[index, : count - step, step] = ratios.values
            deterministic[index] = ratios.deterministic
    return [
        _start_profile(_LogRatios(rows, certain), limits)
        for rows, certain in zip(windows, deterministic, strict=True)
    ]


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


class _LogRatios(NamedTuple):
    """log(q / p) of output tokens [..., K_max] float64; -inf where they cannot be drafted.

    Deterministic drafts have 0 where they are the token, and -inf elsewhere.
    """

    values: Tensor
    deterministic: bool


def _log_ratios(
    logits: Tensor,
    wanted: Tensor,
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    skip: int = 0,
) -> list[_LogRatios]:
    """The ratios of each wanted column.

    Args:
        logits: [n, columns].
        wanted: [n] int64; -1 where no column is the token.
        trajectory: Gives p of the output tokens after the first `skip + 1`.
        draft_temperatures: As in `Drafter.propose`.
        skip: How many output tokens further than the second the rows begin.

    Returns:
        [n] values on the CPU, where profiles live, for each draft temperature.
    """
    params = trajectory.request.params
    greedy = (best_tokens(logits) == wanted).double().log().cpu()
    target = torch.tensor(trajectory.log_probs[skip:], dtype=torch.float64)[: logits.shape[0]]
    found = []
    for temperature in draft_temperatures:
        used = params.temperature if temperature is None else temperature
        if params.is_greedy or used == 0.0:
            found.append(_LogRatios(greedy, True))
            continue
        count = logits.shape[0]
        probs = processed_probs(
            logits, [used] * count, [params.top_k] * count, [params.top_p] * count
        )
        drafted = probs.gather(1, wanted.clamp(min=0).unsqueeze(1)).squeeze(1)
        drafted = torch.where(wanted >= 0, drafted, 0.0).double().log().cpu()
        found.append(_LogRatios(drafted - target, False))
    return found


def _start_profile(ratios: _LogRatios, limits: list[int]) -> StartProfile:
    """Chances under every rule from the ratios [n, K_max] along each round.

    Logarithms keep products of many large ratios finite.
    """
    survival = ratios.values.clamp(max=0.0).cumsum(dim=1).exp()
    if ratios.deterministic:
        return StartProfile(survival, torch.tensor(limits))
    lowest = ratios.values.cumsum(dim=1).cummin(dim=1).values
    return StartProfile(survival, torch.tensor(limits), lowest.clamp(max=0.0).exp())

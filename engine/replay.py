"""Score a drafter on recorded trajectories, exactly and without a target pass.

Lossless speculation does not change the law of the output, so the recorded answer y is a fair
sample under every configuration. Given y, the chance that a round starting at t accepts its first
j drafts, W_t(j), is known: for the ratio rule the product of min(1, q(y_i) / p(y_i)), for
deterministic proposals 1 while they match y. Rounds then form a Markov chain over start positions
whose expected visits give every figure for one K.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor

from engine.drafters.base import Drafter
from engine.drafters.model import ModelDrafter
from engine.record import Trajectory
from engine.sampling import check_logits, processed_probs


@dataclass(frozen=True, slots=True)
class StartProfile:
    """What a drafter achieves from every start position of one trajectory.

    Attributes:
        survival: [n, K_max] float64, W_t(j) for j = 1..K_max; 0 beyond the end of the answer.
        num_proposed: [n] int64, draft tokens the round would verify (at most K_max).
    """

    survival: Tensor
    num_proposed: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Expected counts of one configuration, per request.

    Attributes:
        num_speculative_tokens: K.
        num_tokens: [R] tokens emitted by decode rounds.
        num_rounds: [R] expected rounds.
        num_rounds_by_drafts: [R, K + 1] expected rounds that verify 0..K drafts.
        num_accepted_per_pos: [R, K] expected accepted drafts at each position.
        visits: [R, n] chance that a round starts at each position of each answer; the starting
            points of a measurement are drawn from it.
    """

    num_speculative_tokens: int
    num_tokens: Tensor
    num_rounds: Tensor
    num_rounds_by_drafts: Tensor
    num_accepted_per_pos: Tensor
    visits: Tensor

    def select(self, rows: Seq[int]) -> Replay:
        """The same counts over some of the requests."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        return Replay(
            num_speculative_tokens=self.num_speculative_tokens,
            num_tokens=self.num_tokens[index],
            num_rounds=self.num_rounds[index],
            num_rounds_by_drafts=self.num_rounds_by_drafts[index],
            num_accepted_per_pos=self.num_accepted_per_pos[index],
            visits=self.visits[index],
        )

    @property
    def tokens_per_round(self) -> float:
        """Ratio of sums over requests; at least one of them must have decode rounds."""
        return float(self.num_tokens.sum() / self.num_rounds.sum())

    @property
    def tokens_per_round_std_error(self) -> float | None:
        """Delete-one-request jackknife; None with fewer than two requests that have rounds."""
        decoded = self.num_rounds > 0
        tokens, rounds = self.num_tokens[decoded], self.num_rounds[decoded]
        count = rounds.shape[0]
        if count < 2:
            return None
        left = (tokens.sum() - tokens) / (rounds.sum() - rounds)
        spread = ((left - left.mean()) ** 2).sum() * (count - 1) / count
        return float(spread.sqrt())

    @property
    def mean_verify_tokens(self) -> float:
        """Tokens one row brings to a verify pass on average: drafts and the newest token."""
        by_drafts = self.num_rounds_by_drafts.sum(dim=0)
        drafts = torch.arange(by_drafts.shape[0], dtype=torch.float64)
        return float(1 + (by_drafts * drafts).sum() / by_drafts.sum())


def profile_model(
    drafter: ModelDrafter,
    trajectory: Trajectory,
    draft_temperatures: Seq[float | None],
    *,
    max_drafts: int,
    max_len: int,
) -> list[StartProfile]:
    """Profile an independent chain drafter: one teacher-forced pass serves every temperature.

    Args:
        drafter: Its distribution must depend on the tokens alone.
        trajectory: The recorded answer.
        draft_temperatures: As in `Drafter.propose`.
        max_drafts: K_max.
        max_len: Positions a slot of the engine holds.

    Returns:
        One profile per draft temperature.

    Raises:
        NumericError: The drafter's logits are not finite.
    """
    request, output = trajectory.request, trajectory.output_tokens
    limits = _limits(trajectory, max_drafts, max_len)
    if not limits:
        empty = StartProfile(
            torch.zeros(0, max_drafts, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        )
        return [empty] * len(draft_temperatures)
    logits = drafter.teacher_forced_logits(request.prompt_tokens, output, trajectory.snapshot)
    check_logits(logits)  # An argmax over NaN would pass for a draft that is always wrong.
    wanted = torch.tensor(output[1:], device=logits.device)
    greedy = (logits.argmax(dim=-1) == wanted).double().cpu()  # profiles live on the CPU
    target = torch.tensor([exp(value) for value in trajectory.log_probs], dtype=torch.float64)
    profiles = []
    for temperature in draft_temperatures:
        params = request.params
        used = params.temperature if temperature is None else temperature
        if params.is_greedy or used == 0.0:
            accept = greedy
        else:
            count = len(limits)
            probs = processed_probs(
                logits, [used] * count, [params.top_k] * count, [params.top_p] * count
            )
            drafted = probs.gather(1, wanted.unsqueeze(1)).squeeze(1).double().cpu()
            accept = (drafted / target).clamp(max=1.0)
        profiles.append(_chain_profile(accept, limits, max_drafts))
    return profiles


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
    no_hidden = torch.empty(0)
    if not limits:
        return StartProfile(survival, num_proposed)
    sequence = trajectory.resume_at(1)
    drafter.admit(0, sequence)
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
        drafter.ingest(0, sequence, no_hidden)
    return StartProfile(survival, num_proposed)


def replay(profiles: Seq[StartProfile], num_speculative_tokens: int) -> Replay:
    """Expected counts for one K.

    Args:
        profiles: One per trajectory; trajectories without decode rounds count as zeros.
        num_speculative_tokens: K >= 1, at most the profiles' K_max.

    Returns:
        Counts per trajectory. Exact for every lossless rule behind `survival`.

    Source: expected visits of the chain with transitions P_t(j) = W_t(j) - W_t(j + 1).
    """
    k = num_speculative_tokens
    lengths = torch.tensor([profile.num_proposed.shape[0] for profile in profiles])
    batch, longest = len(profiles), int(lengths.max())
    survival = torch.zeros(batch, longest, k + 2, dtype=torch.float64)
    drafts = torch.zeros(batch, longest, dtype=torch.int64)
    for row, profile in enumerate(profiles):
        count = int(lengths[row])
        survival[row, :count, 0] = 1.0
        survival[row, :count, 1 : k + 1] = profile.survival[:, :k]
        drafts[row, :count] = profile.num_proposed.clamp(max=k)
    positions = torch.arange(k + 2)
    survival *= positions <= drafts.unsqueeze(2)
    transition = survival[:, :, :-1] - survival[:, :, 1:]
    visits = torch.zeros(batch, longest + k + 1, dtype=torch.float64)
    visits[:, 0] = (lengths > 0).double()
    for start in range(longest):
        visits[:, start + 1 : start + k + 2] += visits[:, start, None] * transition[:, start]
    inside = torch.arange(longest) < lengths.unsqueeze(1)
    visits = visits[:, :longest] * inside
    by_drafts = torch.zeros(batch, k + 1, dtype=torch.float64).scatter_add_(1, drafts, visits)
    return Replay(
        num_speculative_tokens=k,
        num_tokens=lengths.double(),
        num_rounds=visits.sum(dim=1),
        num_rounds_by_drafts=by_drafts,
        num_accepted_per_pos=(visits.unsqueeze(2) * survival[:, :, 1 : k + 1]).sum(dim=1),
        visits=visits,
    )


def _limits(trajectory: Trajectory, max_drafts: int, max_len: int) -> list[int]:
    """Draft tokens allowed at each start, capped as in the engine."""
    return [
        min(max_drafts, trajectory.resume_at(start).max_drafts(max_len))
        for start in range(1, len(trajectory.output_tokens))
    ]


def _chain_profile(accept: Tensor, limits: list[int], max_drafts: int) -> StartProfile:
    """W_t(j) as running products of per-position acceptances [n]."""
    count = accept.shape[0]
    padded = torch.cat((accept, torch.zeros(max_drafts, dtype=torch.float64)))
    windows = padded.unfold(0, max_drafts, 1)[:count]
    return StartProfile(windows.cumprod(dim=1), torch.tensor(limits))

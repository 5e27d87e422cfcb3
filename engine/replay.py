"""Score a drafter on recorded trajectories, exactly and without a target pass.

Lossless speculation does not change the law of the output, so the recorded answer y is a fair
sample under every configuration. Given y, the chance that a round starting at t accepts its first
j drafts, W_t(j), is known (see `engine.profile.StartProfile`). Rounds then form a Markov chain over
start positions whose expected visits give every figure for one K.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.profile import StartProfile
from policies.types import VerificationRule


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


def replay(
    profiles: Seq[StartProfile],
    num_speculative_tokens: int,
    rule: VerificationRule = VerificationRule.RATIO,
) -> Replay:
    """Expected counts for one K.

    Args:
        profiles: One per trajectory; trajectories without decode rounds count as zeros.
        num_speculative_tokens: K >= 1, at most the profiles' K_max.
        rule: How drafts that were drawn from a distribution are accepted.

    Returns:
        Counts per trajectory, exact expectations given the answers.

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
        survival[row, :count, 1 : k + 1] = profile.survival_by(rule)[:, :k]
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

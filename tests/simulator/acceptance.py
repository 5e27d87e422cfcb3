"""Tokens per round of made-up drafters, exactly, for every K at once.

A round drafts K tokens; each is accepted with the acceptance probability of its position until
one is not. The round then emits one more token (recovered or bonus), so tau_K = 1 + sum of S_j
over j <= K, with S_j the probability that the first j drafts are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LARGEST = 0.995  # no acceptance probability exceeds it, however it is scaled


class Acceptance(Protocol):
    """How well drafts fit the target's output."""

    def tokens_per_round(self, scales: Floats, max_drafts: int) -> Floats:
        """Tokens per round.

        Args:
            scales: [n] factors on every acceptance probability: draft temperatures, samples of
                requests and drift all act through them.
            max_drafts: Largest K.

        Returns:
            [n, max_drafts], for K = 1 to `max_drafts`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Iid:
    """Every draft is accepted with probability `alpha`, independently.

    Source: Leviathan et al. 2023, equation 1.
    """

    alpha: float

    def tokens_per_round(self, scales: Floats, max_drafts: int) -> Floats:
        """As in `Acceptance`: (1 - alpha^(K + 1)) / (1 - alpha)."""
        alpha = np.clip(self.alpha * scales, 0.0, _LARGEST)[:, None]
        sums: Floats = (1 - alpha ** np.arange(2, max_drafts + 2)) / (1 - alpha)
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoState:
    """Text alternates between easy and hard stretches: autocorrelated acceptance.

    Attributes:
        easy: Acceptance probability of a token in an easy stretch.
        hard: The same in a hard one.
        leave_easy: Probability, per token, that an easy stretch ends.
        leave_hard: The same of a hard one.
    """

    easy: float
    hard: float
    leave_easy: float
    leave_hard: float

    @property
    def alpha(self) -> float:
        """Acceptance probability of a token drawn evenly from the text."""
        share = self.leave_hard / (self.leave_easy + self.leave_hard)
        return share * self.easy + (1 - share) * self.hard

    def tokens_per_round(self, scales: Floats, max_drafts: int) -> Floats:
        """As in `Acceptance`.

        Rounds do not start evenly over the text: they crowd into hard stretches. The state at
        which a round starts is a Markov chain of its own; S_j is taken under its stationary law.
        """
        move = np.array(
            [[1 - self.leave_easy, self.leave_easy], [self.leave_hard, 1 - self.leave_hard]]
        )
        alphas = np.clip(np.outer(scales, [self.easy, self.hard]), 0.0, _LARGEST)
        accept = alphas[:, :, None] * move  # [n, 2, 2]: accept a draft and go on
        reject = (1 - alphas)[:, :, None] * move
        survive = np.broadcast_to(np.eye(2), accept.shape)  # [n, 2, 2]: j drafts accepted
        turned = np.zeros_like(accept)  # to the next round's start, after a rejection
        sums = np.ones(alphas.shape)  # [n, 2]: 1 + S_1 + ... by the state at the start
        result = np.empty((scales.shape[0], max_drafts))
        for k in range(max_drafts):
            turned = turned + survive @ reject
            survive = survive @ accept
            sums = sums + survive.sum(axis=2)
            chain = turned + survive @ move
            to_hard, to_easy = chain[:, 0, 1], chain[:, 1, 0]
            start = np.stack([to_easy, to_hard], axis=1) / (to_easy + to_hard)[:, None]
            result[:, k] = (start * sums).sum(axis=1)
        return result


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several tasks, each with its own acceptance.

    Attributes:
        parts: Share of the output tokens and acceptance of each task; shares add up to 1.
    """

    parts: tuple[tuple[float, Acceptance], ...]

    def tokens_per_round(self, scales: Floats, max_drafts: int) -> Floats:
        """As in `Acceptance`: a ratio of sums, so the harmonic mean over tokens."""
        rounds = np.zeros((scales.shape[0], max_drafts))
        for share, acceptance in self.parts:
            rounds += share / acceptance.tokens_per_round(scales, max_drafts)
        return 1 / rounds

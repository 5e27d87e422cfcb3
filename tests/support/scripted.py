"""Drafters that do as they are told, to drive the engine into chosen rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from engine.drafters.base import DrafterSnapshot, Proposal
from engine.request import Sequence as Running


class StatelessDrafter:
    """A drafter that remembers nothing; subclasses choose the tokens."""

    name = "scripted"
    feature_layers: tuple[int, ...] = ()
    num_bytes = 0

    def admit(self, slot: int, sequence: Running, features: Tensor) -> None:
        """Nothing to take in."""

    def ingest(self, slot: int, sequence: Running, features: Tensor) -> None:
        """Nothing to learn."""

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Nothing to keep."""
        return None

    def restore(self, slot: int, sequence: Running, snapshot: DrafterSnapshot | None) -> None:
        """Nothing to restore."""


class ScriptedDrafter(StatelessDrafter):
    """Drafts the known greedy answer, with a mistake after a chosen number of tokens per round."""

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]],
        num_right: Callable[[Running], int],
        vocab_size: int,
    ) -> None:
        """Learn the script.

        Args:
            answers: Request id -> its greedy output, longer than will be drafted.
            num_right: Right tokens in the coming round of a sequence.
            vocab_size: A mistake is the right token plus one, modulo this.
        """
        self._answers = answers
        self._num_right = num_right
        self._vocab_size = vocab_size

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """As scripted, by the delta rule."""
        drafts = []
        for sequence, limit in zip(sequences, limits, strict=True):
            first, right = sequence.num_output_tokens, self._num_right(sequence)
            truth = self._answers[sequence.request.request_id][first : first + limit]
            assert len(truth) == limit
            drafts.append(
                [
                    token if i < right else (token + 1) % self._vocab_size
                    for i, token in enumerate(truth)
                ]
            )
        return Proposal(drafts, None)


class ConstantDrafter(StatelessDrafter):
    """Drafts one token over and over."""

    def __init__(self, token: int, vocab_size: int, *, with_probs: bool) -> None:
        """Choose the token, and whether q is handed in (ratio rule) or not (delta rule)."""
        self._token = token
        self._vocab_size = vocab_size
        self._with_probs = with_probs

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """The token, as often as allowed."""
        probs = None
        if self._with_probs:
            probs = torch.zeros(len(slots), max(limits), self._vocab_size)
            probs[:, :, self._token] = 1.0
        return Proposal([[self._token] * limit for limit in limits], probs)

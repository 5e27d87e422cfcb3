"""EAGLE-3 drafters with one mistake each: all lossless, all worse than replay says of the head."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.base import Proposal
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.request import Sequence


class StaleKeys(Eagle3Drafter):
    """Keeps what drafting wrote for accepted tokens in place of what the target's states give."""

    _written: dict[int, int]

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Remember how far the keys of the drafts reach."""
        self._written = {
            slot: len(sequence.tokens) - 2 + limit
            for slot, sequence, limit in zip(slots, sequences, limits, strict=True)
            if limit > 0
        }
        return super().propose(slots, sequences, limits, draft_temperature)

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Count the pairs of accepted drafts as computed."""
        super().ingest(slot, sequence, features)
        stale = min(self._written.pop(slot, 0), len(sequence.tokens) - 2)
        self.cache.lengths[slot] = max(self.cache.lengths[slot], stale)


class StatesOneLate(Eagle3Drafter):
    """Pairs every token with the states of the token before the right one."""

    def _store(self, slot: int, end: int, states: Tensor) -> None:
        first = end - states.shape[0] + 1
        room = min(states.shape[0], self.cache.max_len - first)
        self._states[slot, first : first + room] = states[:room]
        self._num_states[slot] = end


class DraftIdsAsTargetIds(Eagle3Drafter):
    """Takes the head's own ids for the target's."""

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Forget the map."""
        self.columns = torch.arange(self.columns.shape[0])
        return super().propose(slots, sequences, limits, draft_temperature)


EAGLE3_MUTANTS: tuple[type[Eagle3Drafter], ...] = (StaleKeys, StatesOneLate, DraftIdsAsTargetIds)

"""A drafter that never drafts: it keeps what the engine hands to drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.base import DrafterSnapshot, Proposal
from engine.errors import EngineError
from engine.request import Sequence


class StateRecorder:
    """Drafts nothing and keeps the states that the engine hands to drafters."""

    name = "recorder"
    num_bytes = 0

    def __init__(self, feature_layers: tuple[int, ...]) -> None:
        """Choose the states, as `Transformer.forward_with_features` counts them."""
        self.feature_layers = feature_layers
        self._parts: dict[int, list[Tensor]] = {}

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Start with the states of the prompt."""
        self._parts[slot] = [features]

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Nothing."""
        return Proposal([[] for _ in slots], None)

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Add the states of the round."""
        self._parts[slot].append(features)

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Sequences are not moved while recording."""
        return None

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Sequences are not moved while recording.

        Raises:
            EngineError: Always.
        """
        raise EngineError("a recorder follows a sequence from its prompt on: it cannot be resumed")

    def take(self, slot: int) -> Tensor:
        """[tokens - 1, width], and forget them."""
        return torch.cat(self._parts.pop(slot))

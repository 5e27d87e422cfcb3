"""What every drafter offers the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kv_cache import KvSnapshot
from engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens of one round.

    Attributes:
        tokens: Draft tokens of each row; a row may have fewer than asked for, or none.
        probs: [B, >= longest draft, vocab] float32, the distribution each token was drawn from;
            None when the drafts are deterministic (verified by the delta rule).
    """

    tokens: list[list[int]]
    probs: Tensor | None


@dataclass(frozen=True, slots=True)
class DrafterSnapshot:
    """A drafter's state of one sequence, detached from its slot.

    Attributes:
        kv: Its keys and values.
        inputs: [num_tokens, width], what it made of the target's features; None when it reads
            none.
    """

    kv: KvSnapshot
    inputs: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        held = 0 if self.inputs is None else self.inputs.numel() * self.inputs.element_size()
        return self.kv.num_bytes + held


class Drafter(Protocol):
    """A source of draft tokens that keeps its own state per slot.

    The engine calls `admit` when a request enters a slot, then per round `propose` (K > 0 only)
    and always `ingest`, also in rounds that did not draft.

    Attributes:
        name: Name in configurations and tables.
        feature_layers: The target's states that `admit` and `ingest` want, as
            `Transformer.forward_with_features` counts them; empty for drafters that see tokens.
    """

    name: str
    feature_layers: tuple[int, ...]

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Forget the slot's former request and take in a new one's tokens.

        Args:
            slot: Slot of the row.
            sequence: Prompt and first output token.
            features: [len(sequence.tokens) - 1, width], the states of `feature_layers` at every
                token but the newest. Width 0 if there are none.
        """
        ...

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Draft up to `limits[row]` tokens after the newest token of each row.

        Args:
            slots: Slot of each row.
            sequences: State of each row. Not modified.
            limits: Most draft tokens of each row; may be 0.
            draft_temperature: None follows each request's temperature; 0 is greedy. Greedy
                requests are always drafted greedily.
        """
        ...

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Learn what a round emitted, and drop what was drafted in vain.

        Args:
            slot: Slot of the row.
            sequence: State after the round.
            features: [accepted + 1, width], the states of `feature_layers` at the positions that
                the target processed and kept in this round; without content if there are none.
        """
        ...

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Copy out state that is costly to rebuild; None when there is none."""
        ...

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Like `admit`, but from a snapshot of the same sequence at this length or later."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory beyond the target's own: weights and caches."""
        ...

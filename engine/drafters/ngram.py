"""N-gram drafting (prompt lookup): continue as the text did after the same last tokens before."""

from __future__ import annotations

from torch import Tensor

from engine.drafters.base import DrafterSnapshot, Proposal
from engine.errors import EngineError
from engine.request import Sequence


class NgramIndex:
    """First occurrence of every n-gram of a growing token list."""

    def __init__(self, min_n: int, max_n: int) -> None:
        """An empty index over n-grams of `min_n` to `max_n` tokens."""
        self._sizes = range(max_n, min_n - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def extend(self, tokens: list[int]) -> None:
        """Index the n-grams of `tokens` that are followed by a token.

        Args:
            tokens: The whole list; its known part must not have changed.
        """
        for end in range(max(1, self._num_indexed), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after.setdefault(tuple(tokens[end - size : end]), end)
        self._num_indexed = max(1, len(tokens))

    def continuation(self, tokens: list[int], limit: int) -> list[int]:
        """Up to `limit` tokens that followed the longest known suffix of `tokens`."""
        for size in self._sizes:
            if size < len(tokens):
                start = self._after.get(tuple(tokens[-size:]))
                if start is not None:
                    return tokens[start : start + limit]
        return []


class NgramDrafter:
    """Longest suffix n-gram in [min_n, max_n], earliest occurrence, no model.

    Source: Saxena 2023 (prompt lookup decoding); matching rule of vLLM's `ngram` method.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, name: str, num_slots: int, *, min_n: int, max_n: int) -> None:
        """Make an idle drafter.

        Args:
            name: Name in configurations and tables.
            num_slots: Slots of the engine.
            min_n: Shortest n-gram to look up, at least 1.
            max_n: Longest n-gram.
        """
        if not 1 <= min_n <= max_n:
            raise EngineError(f"n-gram sizes {min_n}..{max_n}: need 1 <= min <= max")
        self.name = name
        self._min_n, self._max_n = min_n, max_n
        self._indices = [NgramIndex(min_n, max_n) for _ in range(num_slots)]

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Forget what the slot held; the next proposal indexes the tokens."""
        self._indices[slot] = NgramIndex(self._min_n, self._max_n)

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Look up each row; deterministic, so the draft temperature does not matter."""
        for slot, sequence in zip(slots, sequences, strict=True):
            self._indices[slot].extend(sequence.tokens)
        return Proposal(
            [
                self._indices[slot].continuation(sequence.tokens, limit)
                for slot, sequence, limit in zip(slots, sequences, limits, strict=True)
            ],
            None,
        )

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """The next proposal indexes what came in between, so that idle rounds cost nothing."""

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """The index is quick to rebuild."""
        return None

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Index all tokens at once: a sequence in the middle of its answer has long paid for it."""
        self._indices[slot] = NgramIndex(self._min_n, self._max_n)
        self._indices[slot].extend(sequence.tokens)

    @property
    def num_bytes(self) -> int:
        """Nothing worth counting beside a model."""
        return 0

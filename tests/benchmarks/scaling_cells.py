"""The rounds that `make bench-scaling` times: one set of settings each, one variable at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 256  # tokens, wherever another variable is at work
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_TOKENS_PER_ROW = range(1, 10)
_CONTEXTS = (64, 512, 1024, 2048)
_MAX_CACHED_TOKENS = 16384  # of all rows, so that all caches together take about 3 GB
_DEPTHS = (5, 10, 20)
_DRAFT_BATCH_SIZES = (1, 16)
_DRAFT_KS = range(1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCell:
    """One kind of decode round.

    Attributes:
        batch_size: Rows.
        num_speculative_tokens: K of every row.
        context_len: Tokens of every row that have keys and values before the round.
        num_layers: Layers of the target in use.
        temperature: Of every row; 0 is greedy.
        drafter: Name of the drafter, or None where known tokens are verified.
    """

    batch_size: int
    num_speculative_tokens: int
    context_len: int
    num_layers: int
    temperature: float = 0.0
    drafter: str | None = None

    @property
    def tokens_per_row(self) -> int:
        """Tokens of a row in the verify pass: the newest one and the drafts."""
        return 1 + self.num_speculative_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows in the verify pass."""
        return self.batch_size * self.tokens_per_row

    def __str__(self) -> str:
        """For tables and progress."""
        rows = f"{self.batch_size} x {self.tokens_per_row} tokens, context {self.context_len}"
        extras = [f"{self.num_layers} layers"]
        if self.temperature > 0:
            extras.append(f"T = {self.temperature:g}")
        if self.drafter is not None:
            extras.append(self.drafter)
        return ", ".join([rows, *extras])


def all_cells(num_layers: int, drafters: Sequence[str]) -> list[RoundCell]:
    """Every cell of the benchmark, each one once.

    Args:
        num_layers: Layers of the whole target.
        drafters: Names of the drafters that are timed over K.
    """
    found = (*_over_tokens(num_layers), *_over_context(num_layers), *_over_layers(num_layers))
    return list(dict.fromkeys((*found, *_sampled(num_layers), *_over_drafts(num_layers, drafters))))


def _verify(batch_size: int, tokens_per_row: int, **other: int) -> RoundCell:
    return RoundCell(
        batch_size=batch_size,
        num_speculative_tokens=tokens_per_row - 1,
        context_len=other.get("context_len", CONTEXT),
        num_layers=other["num_layers"],
    )


def _over_tokens(num_layers: int) -> Iterator[RoundCell]:
    for batch_size in _BATCH_SIZES:
        for tokens in _TOKENS_PER_ROW:
            yield _verify(batch_size, tokens, num_layers=num_layers)


def _over_context(num_layers: int) -> Iterator[RoundCell]:
    for context_len in _CONTEXTS:
        for batch_size in (1, 4, 16, 64):
            if batch_size * context_len <= _MAX_CACHED_TOKENS:
                for tokens in (1, 5):
                    yield _verify(
                        batch_size, tokens, context_len=context_len, num_layers=num_layers
                    )


def _over_layers(num_layers: int) -> Iterator[RoundCell]:
    for depth in _DEPTHS:
        if depth < num_layers:
            for batch_size in (1, 8, 32):
                for tokens in (1, 4, 9):
                    yield _verify(batch_size, tokens, num_layers=depth)


def _sampled(num_layers: int) -> Iterator[RoundCell]:
    for batch_size in (1, 4, 16, 64):
        for tokens in (1, 5):
            yield RoundCell(
                batch_size=batch_size,
                num_speculative_tokens=tokens - 1,
                context_len=CONTEXT,
                num_layers=num_layers,
                temperature=1.0,
            )


def _over_drafts(num_layers: int, drafters: Sequence[str]) -> Iterator[RoundCell]:
    for drafter in drafters:
        for batch_size in _DRAFT_BATCH_SIZES:
            for k in _DRAFT_KS:
                yield RoundCell(
                    batch_size=batch_size,
                    num_speculative_tokens=k,
                    context_len=CONTEXT,
                    num_layers=num_layers,
                    drafter=drafter,
                )

"""Batches of answers of similar length, padded, in an order that a seed determines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler

from engine.training.corpus import Example


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded on the right with zeros.

    Attributes:
        tokens: [B, L] int64.
        lengths: [B] int64, tokens of each row.
        prompt_lens: [B] int64.
        temperatures: [B] float32.
        states: [B, L - 1, width] float32.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lens: Tensor
    temperatures: Tensor
    states: Tensor


def collate(examples: Sequence[Example]) -> Batch:
    """Put examples side by side."""
    return Batch(
        pad_sequence([e.tokens for e in examples], batch_first=True),
        torch.tensor([e.tokens.shape[0] for e in examples]),
        torch.tensor([e.prompt_len for e in examples]),
        torch.tensor([e.temperature for e in examples]),
        pad_sequence([e.states.float() for e in examples], batch_first=True),
    )


class TokenBatches(Sampler[list[int]]):
    """Batches of at most so many padded tokens; every epoch has an order of its own.

    Rows of a batch have similar sizes, so little is padding; batches come in random order.
    """

    def __init__(self, sizes: Sequence[int], max_tokens: int, seed: int) -> None:
        """Plan batches.

        Args:
            sizes: Tokens of each example, or of the part where padding costs most.
            max_tokens: Rows times largest size of a batch; one larger example is a batch alone.
            seed: Seed of all orders.
        """
        self._sizes = sizes
        self._max_tokens = max_tokens
        self._seed = seed
        self.epoch = 0
        self.skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of `epoch`, without the first `skip`."""
        shuffle = random.Random(f"{self._seed}:{self.epoch}")
        # Noise on the length mixes neighbours anew in every epoch.
        order = sorted(
            range(len(self._sizes)), key=lambda i: self._sizes[i] * shuffle.uniform(0.9, 1.1)
        )
        batches: list[list[int]] = []
        current: list[int] = []
        longest = 0
        for index in order:
            longest = max(longest, self._sizes[index])
            if current and longest * (len(current) + 1) > self._max_tokens:
                batches.append(current)
                current, longest = [], self._sizes[index]
            current.append(index)
        if current:
            batches.append(current)
        shuffle.shuffle(batches)
        return iter(batches[self.skip :])


def make_loader(examples: Sequence[Example], sampler: TokenBatches) -> DataLoader[Batch]:
    """PyTorch's loader over the examples; what is not in memory is read from the shards' maps."""
    return DataLoader(
        examples,  # type: ignore[arg-type]  # any sequence will do
        batch_sampler=sampler,
        collate_fn=collate,
    )

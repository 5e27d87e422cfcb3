"""Batches: every example once per epoch, little padding, an order that the seed determines."""

from __future__ import annotations

import torch

from engine.training.batches import TokenBatches, collate, make_loader
from engine.training.corpus import Example


def example(length: int, prompt_len: int = 2) -> Example:
    """Tokens 1, 2, 3, ..."""
    return Example(
        tokens=torch.arange(1, length + 1),
        prompt_len=prompt_len,
        temperature=0.5,
        task="chat",
        states=torch.full((length - 1, 4), float(length), dtype=torch.bfloat16),
    )


def test_collate_pads_on_the_right() -> None:
    """Rows keep their lengths; what lies behind them is zero."""
    batch = collate([example(5), example(3, prompt_len=1)])
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]]
    assert batch.lengths.tolist() == [5, 3]
    assert batch.prompt_lens.tolist() == [2, 1]
    assert batch.states.shape == (2, 4, 4)
    assert batch.states.dtype == torch.float32
    assert batch.states[1].tolist() == [[3.0] * 4] * 2 + [[0.0] * 4] * 2


def test_every_example_once_and_within_the_limit() -> None:
    """In each epoch, whatever the sizes; a larger one is a batch alone."""
    sizes = [1, 9, 2, 8, 3, 7, 4, 6, 5, 40]
    sampler = TokenBatches(sizes, 16, seed=0)
    for epoch in range(3):
        sampler.epoch = epoch
        batches = list(sampler)
        assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
        for batch in batches:
            padded = len(batch) * max(sizes[i] for i in batch)
            assert padded <= 16 or batch == [9]


def test_the_seed_and_the_epoch_give_the_order() -> None:
    """Same seed and epoch, same batches; another epoch or seed, others."""
    sizes = list(range(1, 60))

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = TokenBatches(sizes, 100, seed)
        sampler.epoch = epoch
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_skip_leaves_out_what_was_done() -> None:
    """A run that was killed goes on within its epoch."""
    sampler = TokenBatches(list(range(1, 30)), 50, seed=3)
    whole = list(sampler)
    sampler.skip = 2
    assert list(sampler) == whole[2:]


def test_the_loader_gives_collated_batches() -> None:
    """One per batch of the sampler, in its order."""
    examples = [example(n) for n in (4, 5, 9, 10)]
    sampler = TokenBatches([4, 5, 9, 10], 10, seed=0)
    lengths = [batch.lengths.tolist() for batch in make_loader(examples, sampler)]
    assert lengths == [[examples[i].tokens.shape[0] for i in batch] for batch in sampler]

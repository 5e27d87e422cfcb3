"""Slots, lengths, snapshots."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KvCache
from tests.support.tiny_models import tiny_config

CONFIG = tiny_config(num_layers=3, num_kv_heads=2)


def filled(num_slots: int = 4, max_len: int = 10) -> KvCache:
    """A cache of distinct numbers."""
    cache = KvCache.allocate(CONFIG, num_slots, max_len, torch.float32, torch.device("cpu"))
    cache.keys.copy_(torch.arange(cache.keys.numel()).view_as(cache.keys))
    cache.values.copy_(-cache.keys)
    return cache


def test_memory_is_zeroed_and_as_large_as_stated() -> None:
    """[layers, slots, kv heads, max_len, head_dim], two tensors, nothing committed."""
    cache = KvCache.allocate(CONFIG, 4, 10, torch.bfloat16, torch.device("cpu"))

    assert cache.keys.shape == cache.values.shape == (3, 4, 2, 10, 6)
    assert not cache.keys.any()
    assert not cache.values.any()
    assert cache.lengths == [0, 0, 0, 0]
    assert (cache.num_slots, cache.max_len) == (4, 10)
    total = cache.keys.nbytes + cache.values.nbytes
    assert total == 4 * 10 * KvCache.bytes_per_token(CONFIG, torch.bfloat16)


def test_a_snapshot_is_a_copy_of_the_committed_part() -> None:
    """What is written to the slot later does not reach it."""
    cache = filled()
    cache.lengths[2] = 7

    snapshot = cache.snapshot(2)
    before = cache.keys[:, 2, :, :7].clone()
    cache.keys.zero_()

    assert snapshot.num_tokens == 7
    assert torch.equal(snapshot.keys, before)
    assert torch.equal(snapshot.values, -before)
    assert snapshot.num_bytes == 7 * KvCache.bytes_per_token(CONFIG, torch.float32)


@pytest.mark.parametrize("length", [0, 1, 4, 7])
def test_restoring_fills_one_slot_and_no_other(length: int) -> None:
    """Any prefix of a snapshot can go to any slot."""
    cache = filled()
    cache.lengths[2] = 7
    snapshot = cache.snapshot(2)
    before = cache.keys.clone()

    cache.restore(0, snapshot, length)

    assert cache.lengths == [length, 0, 7, 0]
    assert torch.equal(cache.keys[:, 0, :, :length], before[:, 2, :, :length])
    assert torch.equal(cache.values[:, 0, :, :length], -before[:, 2, :, :length])
    assert torch.equal(cache.keys[:, 0, :, length:], before[:, 0, :, length:])
    assert torch.equal(cache.keys[:, 1:], before[:, 1:])


def test_a_snapshot_survives_a_round_trip_through_a_larger_cache() -> None:
    """Caches of other sizes take it."""
    source = filled(max_len=10)
    source.lengths[1] = 5
    snapshot = source.snapshot(1)
    other = filled(num_slots=2, max_len=20)

    other.restore(1, snapshot, 5)
    again = other.snapshot(1)

    assert torch.equal(again.keys, snapshot.keys)
    assert torch.equal(again.values, snapshot.values)


@pytest.mark.parametrize(("length", "max_len"), [(8, 10), (-1, 10), (6, 5)])
def test_a_length_that_does_not_fit_is_refused(length: int, max_len: int) -> None:
    """Longer than the snapshot, negative, or longer than a slot: an error and no change."""
    source = filled()
    source.lengths[0] = 7
    cache = filled(max_len=max_len)
    before = cache.keys.clone()

    with pytest.raises(ValueError, match=f"length = {length}"):
        cache.restore(1, source.snapshot(0), length)

    assert torch.equal(cache.keys, before)
    assert cache.lengths == [0, 0, 0, 0]


def test_the_first_layers_share_memory_and_lengths() -> None:
    """A write through the view is a write to the cache."""
    cache = filled()
    view = cache.first_layers(2)

    view.keys[1, 3, 0, 5] = 777.0
    cache.lengths[3] = 6

    assert view.keys.shape[0] == 2
    assert bool((cache.keys[1, 3, 0, 5] == 777.0).all())
    assert view.lengths[3] == 6

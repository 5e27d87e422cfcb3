"""Attention of the native kernels against the reference, and what it does to the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.kernels.attention import TorchAttention, prepare_attention
from engine.kernels.backend import Backend
from engine.kernels.native.attention import NativeAttention
from engine.kernels.native.bindings import Library
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import StepLayout, make_layout

CPU = torch.device("cpu")
MAX_LEN = 320
NUM_SLOTS = 6

RAGGED = ((4, 300, 1), (0, 31, 3), (5, 0, 9), (2, 64, 2), (1, 32, 1))
"""Slot, tokens before and new tokens of each row: lengths on both sides of blocks of 32."""


def make_config(head_dim: int, num_heads: int = 6, num_kv_heads: int = 2) -> ModelConfig:
    """A model whose attention alone matters."""
    return ModelConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        qkv_bias=False,
        max_position_embeddings=MAX_LEN,
        bos_token_id=None,
        eos_token_ids=(),
    )


def filled_cache(config: ModelConfig, dtype: torch.dtype = torch.float32) -> KvCache:
    """A cache with something everywhere."""
    cache = KvCache.allocate(config, NUM_SLOTS, MAX_LEN, dtype, CPU)
    generator = torch.Generator().manual_seed(7)
    for part in (cache.keys, cache.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    return cache


def layout_of(rows: Sequence[tuple[int, int, int]]) -> StepLayout:
    """Rows of (slot, start, new tokens)."""
    slots, starts, q_lens = zip(*rows, strict=True)
    return make_layout(slots, starts, q_lens, device=CPU)


def new_tokens(config: ModelConfig, count: int, scale: float = 1.0) -> Tensor:
    """Queries, keys and values of some tokens; the queries scaled."""
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    qkv = torch.randn((count, width), generator=torch.Generator().manual_seed(count))
    qkv[:, : config.num_heads * config.head_dim] *= scale
    return qkv


def tables_of(config: ModelConfig, dtype: torch.dtype = torch.float32) -> RotaryTables:
    """Rotary tables in float32 values, so that all types rotate by the same angles."""
    tables = RotaryTables.build(config, MAX_LEN, torch.float32, CPU)
    return RotaryTables(tables.cos.to(dtype), tables.sin.to(dtype))


def attend(
    config: ModelConfig, rows: Sequence[tuple[int, int, int]], qkv: Tensor, cache: KvCache
) -> Tensor:
    """One pass over layer 1 by the native kernel."""
    tables = tables_of(config)
    return NativeAttention(config, layout_of(rows), tables, cache)(qkv, 1)


def exact(
    config: ModelConfig, rows: Sequence[tuple[int, int, int]], qkv: Tensor
) -> tuple[Tensor, KvCache]:
    """The same pass over the same cache by the reference in float64, and the cache after it."""
    cache = filled_cache(config, torch.float64)
    tables = tables_of(config, torch.float64)
    return TorchAttention(config, layout_of(rows), tables, cache)(qkv.double(), 1), cache


def count_of(rows: Sequence[tuple[int, int, int]]) -> int:
    """New tokens of all rows."""
    return sum(q_len for _, _, q_len in rows)


def multiples(native: Library, *head_dims: int) -> list[int]:
    """The head dimensions that this library computes."""
    return [head_dim for head_dim in head_dims if head_dim % native.lanes == 0]


# ---------------------------------------------------------------- right


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 2), (40, 1), (3, 1)])
def test_ragged_rows_equal_the_reference(native: Library, heads: tuple[int, int]) -> None:
    """Any head size, grouped or not, slots in any order; 2e-6 is a few dozen roundings of 1."""
    for head_dim in multiples(native, 8, 16, 32, 64, 80, 96, 128):
        config = make_config(head_dim, *heads)
        qkv = new_tokens(config, count_of(RAGGED))

        out = attend(config, RAGGED, qkv, filled_cache(config))

        expected, _ = exact(config, RAGGED, qkv)
        torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("q_len", range(1, 10))
def test_contexts_that_end_around_blocks(native: Library, q_len: int) -> None:
    """Nothing is lost or seen twice where one block of keys ends and the next begins."""
    config = make_config(native.lanes * 2)
    for start in (0, 1, 22, 30, 31, 32, 33, 55, 63, 64, 65, 127):
        rows = ((3, start, q_len),)
        qkv = new_tokens(config, q_len)

        out = attend(config, rows, qkv, filled_cache(config))

        expected, _ = exact(config, rows, qkv)
        torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("start", [0, 5, 230])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (40, 1)])
def test_a_prompt_equals_the_reference(native: Library, heads: tuple[int, int], start: int) -> None:
    """Also with more queries than share one pass over the keys."""
    config = make_config(64, *heads)
    rows = ((2, start, 70), (0, 3, 40))
    qkv = new_tokens(config, 110)

    out = attend(config, rows, qkv, filled_cache(config))

    expected, _ = exact(config, rows, qkv)
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("batch_size", [1, 5, 6])
def test_few_rows_and_many(native: Library, batch_size: int) -> None:
    """Whether the heads of a group are computed together or apart."""
    config = make_config(64, 9, 3)
    rows = [(slot, 40 + slot, 2) for slot in reversed(range(batch_size))]
    qkv = new_tokens(config, 2 * batch_size)

    out = attend(config, rows, qkv, filled_cache(config))

    expected, _ = exact(config, rows, qkv)
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)


def test_large_scores_stay_right(native: Library) -> None:
    """Scores of 10^4: exponentials of differences; float32 scores are off by 10^4 * 2^-22."""
    config = make_config(64)
    qkv = new_tokens(config, count_of(RAGGED), scale=1e4)

    out = attend(config, RAGGED, qkv, filled_cache(config))

    expected, _ = exact(config, RAGGED, qkv)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.05)
    assert out.isfinite().all()


# ---------------------------------------------------------------- the cache


def test_keys_and_values_go_to_their_places_and_nowhere_else(native: Library) -> None:
    """Other slots, layers and positions keep every bit; values are copied, keys rotated."""
    config = make_config(64)
    qkv = new_tokens(config, count_of(RAGGED))
    cache, before = filled_cache(config), filled_cache(config)

    attend(config, RAGGED, qkv, cache)

    _, expected = exact(config, RAGGED, qkv)
    layout = layout_of(RAGGED)
    where = (1, layout.token_slots, slice(None), layout.positions)
    torch.testing.assert_close(
        cache.keys[where].double(), expected.keys[where], rtol=1e-6, atol=1e-6
    )
    assert torch.equal(cache.values[where].double(), expected.values[where])
    cache.keys[where] = before.keys[where]
    cache.values[where] = before.values[where]
    assert torch.equal(cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nothing_beyond_a_context_reaches_a_result(native: Library, poison: float) -> None:
    """What was left there may be anything, and a later token of a row is beyond too."""
    for head_dim in multiples(native, 8, 16, 64, 80, 96):
        config = make_config(head_dim)
        qkv = new_tokens(config, count_of(RAGGED))
        expected = attend(config, RAGGED, qkv, filled_cache(config))
        cache = filled_cache(config)
        known = torch.zeros(NUM_SLOTS, MAX_LEN, dtype=torch.bool)
        for slot, start, _ in RAGGED:
            known[slot, :start] = True
        for part in (cache.keys, cache.values):
            part[0] = poison
            part[1].transpose(1, 2)[~known] = poison

        assert torch.equal(attend(config, RAGGED, qkv, cache), expected)


def test_a_row_that_is_not_finite_disturbs_no_other(native: Library) -> None:
    """Its own results are NaN, the others' keep every bit."""
    config = make_config(64)
    qkv = new_tokens(config, count_of(RAGGED))
    expected = attend(config, RAGGED, qkv, filled_cache(config))
    qkv[1:4] = float("nan")

    out = attend(config, RAGGED, qkv, filled_cache(config))

    assert out[1:4].isnan().all()
    assert torch.equal(out[4:], expected[4:])
    assert torch.equal(out[:1], expected[:1])


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (3, 1)])
def test_a_row_alone_equals_the_row_in_a_batch(native: Library, heads: tuple[int, int]) -> None:
    """Equal to the bit, whoever comes along."""
    config = make_config(64, *heads)
    qkv = new_tokens(config, count_of(RAGGED))

    together = attend(config, RAGGED, qkv, filled_cache(config))

    first = 0
    for row in RAGGED:
        part = slice(first, first + row[2])
        assert torch.equal(attend(config, [row], qkv[part], filled_cache(config)), together[part])
        first = part.stop


@pytest.mark.parametrize("start", [0, 28, 60])
@pytest.mark.parametrize("q_len", [2, 9, 70])
def test_tokens_at_once_equal_tokens_one_by_one(native: Library, q_len: int, start: int) -> None:
    """Verifying drafts gives plain decoding's results and cache, to the bit."""
    config = make_config(64)
    qkv = new_tokens(config, q_len)
    cache, stepwise = filled_cache(config), filled_cache(config)

    at_once = attend(config, [(2, start, q_len)], qkv, cache)

    one_by_one = [
        attend(config, [(2, start + i, 1)], qkv[i : i + 1], stepwise) for i in range(q_len)
    ]
    assert torch.equal(torch.cat(one_by_one), at_once)
    assert torch.equal(cache.keys, stepwise.keys)
    assert torch.equal(cache.values, stepwise.values)


def test_results_do_not_depend_on_threads(native: Library, threads: Callable[[int], None]) -> None:
    """Equal to the bit with one thread and with several."""
    config = make_config(64)
    rows = ((0, 250, 8), (3, 17, 1), (1, 0, 60))
    qkv = new_tokens(config, count_of(rows))
    results = []
    for count in (1, 2, 3):
        threads(count)
        cache = filled_cache(config)
        results.append((attend(config, rows, qkv, cache), cache.keys, cache.values))

    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))


# ---------------------------------------------------------------- the seam


def test_heads_that_do_not_suit_are_left_to_the_reference(native: Library) -> None:
    """Six is no multiple of any vector; the result is the reference's."""
    config = make_config(6)
    qkv = new_tokens(config, count_of(RAGGED))
    layout, tables = layout_of(RAGGED), tables_of(config)

    attention = prepare_attention(config, layout, tables, filled_cache(config), "native")

    assert isinstance(attention, TorchAttention)
    expected, _ = exact(config, RAGGED, qkv)
    torch.testing.assert_close(attention(qkv, 1).double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("native", NativeAttention), ("onednn", TorchAttention), ("torch", TorchAttention)],
)
def test_only_the_native_backend_uses_the_kernel(
    native: Library, backend: Backend, kind: type[object]
) -> None:
    """The packed operators have no attention of their own."""
    config = make_config(64)

    attention = prepare_attention(
        config,
        layout_of(RAGGED),
        tables_of(config),
        filled_cache(config),
        backend,
    )

    assert isinstance(attention, kind)


STRIDED = """
import sys
import torch
from tests.unit.engine.kernels.test_attention import attend, filled_cache, make_config, new_tokens
config = make_config(128, 160, 40)
qkv = new_tokens(config, 300)
rows = [(0, 0, 300)]
expected = attend(config, rows, qkv, filled_cache(config))
out = attend(config, rows, qkv.T.contiguous().T, filled_cache(config))
sys.exit(0 if torch.equal(out, expected) else 3)
"""
# 37 MB: more than the allocator ever keeps, so memory that was given back is gone.


def test_queries_need_not_be_contiguous() -> None:
    """The copy that is made of them lives until they are read (in a process of its own)."""
    done = subprocess.run([sys.executable, "-c", STRIDED], timeout=120, check=False)

    assert done.returncode == 0


def test_results_are_float32_whatever_the_default_is(native: Library) -> None:
    """Loading a model elsewhere may change torch's default type for a while."""
    config = make_config(64)
    qkv = new_tokens(config, count_of(RAGGED))
    cache, tables = filled_cache(config), tables_of(config)
    attention = NativeAttention(config, layout_of(RAGGED), tables, cache)
    expected = attention(qkv, 1)
    torch.set_default_dtype(torch.float64)
    try:
        out = attention(qkv, 1)
    finally:
        torch.set_default_dtype(torch.float32)

    assert out.dtype == torch.float32
    assert torch.equal(out, expected)

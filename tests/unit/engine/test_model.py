"""The forward pass: against transformers, against stored figures, and against itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.model import Transformer
from tests.support.reference import plain_logits
from tests.support.tiny_models import (
    answer,
    random_prompt,
    tiny_config,
    tiny_engine,
    tiny_model,
    tiny_weights,
)

CHECKPOINTS = Path(__file__).parents[2] / "data" / "checkpoints"
LLAMA_LIKE = [
    "H0_control_sharded",
    "H7_tied_no_head",
    "H10_rope_llama3",
    "H11_rope_linear_old_key",
    "H15_head_dim",
    "H16_qkv_bias",
    "H19_window_switched_off",
    "H25_template_in_own_file",
]


@pytest.mark.parametrize("name", LLAMA_LIKE)
def test_a_checkpoint_gives_its_stored_logits_and_tokens(name: str) -> None:
    """Logits after the prompt to 2e-3 and greedy ids, from a float64 reference on file."""
    folder = CHECKPOINTS / name
    config = read_config(folder)
    model = Transformer.from_weights(config, read_weights(folder, config))
    expected = json.loads((folder / "expected.json").read_text())
    prompt = tuple(expected["prompt_ids"])

    torch.testing.assert_close(
        plain_logits(model, [prompt])[0],
        torch.tensor(expected["next_token_logits"]),
        rtol=0,
        atol=2e-3,
    )
    greedy = answer(tiny_engine(model, slots=1), prompt, len(expected["greedy_ids"]))
    assert greedy == expected["greedy_ids"]


def in_transformers(config: ModelConfig, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """The same weights in transformers."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_logits_equal_those_of_transformers(num_kv_heads: int) -> None:
    """Every position of a prompt, for one, some and all key-value heads."""
    config = tiny_config(num_kv_heads=num_kv_heads)
    weights = tiny_weights(config, seed=num_kv_heads)
    model = Transformer.from_weights(config, weights)
    tokens = random_prompt(0, 40)

    with torch.inference_mode():
        expected = in_transformers(config, weights)(torch.tensor([tokens])).logits[0]

    torch.testing.assert_close(all_logits(model, [tokens])[0], expected, rtol=0, atol=1e-4)


def all_logits(
    model: Transformer, rows: list[tuple[int, ...]], slots: list[int] | None = None
) -> list[torch.Tensor]:
    """Logits of every position of ragged rows, in one pass."""
    slots = slots or list(range(len(rows)))
    lengths = [len(row) for row in rows]
    cache = KvCache.allocate(model.config, max(slots) + 1, max(lengths), model.dtype, model.device)
    layout = make_layout(slots, [0] * len(rows), lengths, device=model.device)
    flat = torch.tensor([token for row in rows for token in row])
    with torch.inference_mode():
        logits = model.logits(model.forward(flat, layout, cache))
    return list(torch.split(logits, lengths))


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [3, 0, 6, 1]], ids=["in order", "scattered"])
def test_a_ragged_batch_equals_its_rows(slots: list[int]) -> None:
    """Rows of other lengths and slots in the pass change nothing."""
    model = tiny_model(0)
    rows = [random_prompt(length, length) for length in (1, 9, 4, 30)]

    for row, logits in zip(rows, all_logits(model, rows, slots), strict=True):
        torch.testing.assert_close(logits, all_logits(model, [row])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_prompt_in_pieces_equals_the_whole(cut: int) -> None:
    """Later tokens find the earlier ones in the cache."""
    model, tokens = tiny_model(0), random_prompt(1, 20)
    whole = all_logits(model, [tokens])[0]
    cache = KvCache.allocate(model.config, 3, 20, model.dtype, model.device)
    pieces = []
    for start, piece in ((0, tokens[:cut]), (cut, tokens[cut:])):
        layout = make_layout([1], [start], [len(piece)], device=model.device)
        with torch.inference_mode():
            pieces.append(model.logits(model.forward(torch.tensor(piece), layout, cache)))

    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-4)


def test_a_pass_writes_its_own_slots_only() -> None:
    """Other slots, and positions outside the pass, keep their bits; lengths are left alone."""
    model = tiny_model(0)
    cache = KvCache.allocate(model.config, 4, 12, model.dtype, model.device)
    cache.keys.fill_(0.25)
    cache.values.fill_(0.25)
    layout = make_layout([2, 0], [3, 5], [1, 4], device=model.device)

    with torch.inference_mode():
        model.forward(torch.tensor([1, 2, 3, 4, 5]), layout, cache)

    written = {(2, 3), *((0, position) for position in range(5, 9))}
    for slot in range(4):
        for position in range(12):
            changed = bool((cache.keys[:, slot, :, position] != 0.25).all())
            untouched = bool((cache.keys[:, slot, :, position] == 0.25).all())
            assert changed == ((slot, position) in written)
            assert untouched == ((slot, position) not in written)
    assert cache.lengths == [0, 0, 0, 0]


def test_stale_entries_beyond_a_row_have_no_effect() -> None:
    """What a rejected draft left in the cache does not reach shorter rows' logits."""
    model, tokens = tiny_model(0), random_prompt(2, 8)
    clean = all_logits(model, [tokens])[0]
    cache = KvCache.allocate(model.config, 2, 40, model.dtype, model.device)
    cache.keys.fill_(1e4)
    cache.values.fill_(1e4)
    long = random_prompt(3, 40)
    layout = make_layout([0, 1], [0, 0], [8, 40], device=model.device)

    with torch.inference_mode():
        hidden = model.forward(torch.tensor([*tokens, *long]), layout, cache)

    torch.testing.assert_close(model.logits(hidden[:8]), clean, rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_first_layers_are_a_model_of_fewer_layers(num_layers: int) -> None:
    """Cutting equals building from the first layers' weights, without copying any."""
    config = tiny_config(num_layers=3)
    weights = tiny_weights(config, seed=4)
    model = Transformer.from_weights(config, weights)
    small = Transformer.from_weights(replace(config, num_layers=num_layers), weights)
    tokens = random_prompt(4, 15)

    cut = model.first_layers(num_layers)

    assert cut.embedding is model.embedding
    assert torch.equal(all_logits(cut, [tokens])[0], all_logits(small, [tokens])[0])


@pytest.mark.parametrize("num_layers", [-1, 0, 3, 4])
def test_a_cut_that_leaves_nothing_or_everything_is_refused(num_layers: int) -> None:
    """A draft of all layers is the target, not a draft."""
    with pytest.raises(ValueError, match=f"num_layers = {num_layers}"):
        tiny_model(0).first_layers(num_layers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_compute_the_same_to_their_precision(dtype: torch.dtype) -> None:
    """Logits come as float32 from any compute type."""
    config = tiny_config()
    weights = tiny_weights(config, seed=5)
    tokens = random_prompt(5, 12)
    expected = all_logits(Transformer.from_weights(config, weights), [tokens])[0]

    logits = all_logits(Transformer.from_weights(config, weights, dtype=dtype), [tokens])[0]

    assert logits.dtype == torch.float32
    tolerance = 1e-4 if dtype == torch.float64 else 0.6
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("layers", [(0,), (1,), (2,), (3,), (0, 1, 3), (0, 1, 2, 3)], ids=str)
def test_features_are_the_hidden_states_of_transformers(layers: tuple[int, ...]) -> None:
    """Each id is the state of that number there, the last one after the final norm."""
    config = tiny_config(num_layers=3)
    weights = tiny_weights(config, seed=6)
    tokens = random_prompt(6, 20)
    with torch.inference_mode():
        states = in_transformers(config, weights)(
            torch.tensor([tokens]), output_hidden_states=True
        ).hidden_states

    final, features = features_of(Transformer.from_weights(config, weights), [tokens], layers)

    expected = torch.cat([states[layer][0] for layer in layers], dim=-1)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(final, states[3][0], rtol=1e-5, atol=1e-4)


def features_of(
    model: Transformer, rows: list[tuple[int, ...]], layers: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Final states and features of ragged rows, in one pass."""
    lengths = [len(row) for row in rows]
    cache = KvCache.allocate(model.config, len(rows), max(lengths), model.dtype, model.device)
    layout = make_layout(range(len(rows)), [0] * len(rows), lengths, device=model.device)
    flat = torch.tensor([token for row in rows for token in row])
    with torch.inference_mode():
        return model.forward_with_features(flat, layout, cache, layers)


def test_features_of_a_ragged_batch_follow_its_tokens() -> None:
    """One row per token, in the order of the rows, whatever their lengths."""
    model = tiny_model(0)
    rows = [random_prompt(length, length) for length in (3, 11, 1, 6)]

    _, features = features_of(model, rows, (1, 2))

    alone = torch.cat([features_of(model, [row], (1, 2))[1] for row in rows])
    torch.testing.assert_close(features, alone, rtol=1e-5, atol=1e-4)


def test_no_feature_layers_give_no_width() -> None:
    """And the final states are the same bits with features or without."""
    model, tokens = tiny_model(0), random_prompt(1, 9)

    final, features = features_of(model, [tokens], ())

    assert features.shape == (9, 0)
    assert torch.equal(final, features_of(model, [tokens], (0, 2, 3))[0])

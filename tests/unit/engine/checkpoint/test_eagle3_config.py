"""Reading the configuration of an EAGLE-3 head: what is understood, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.eagle3_config import ARCHITECTURES, is_eagle3, read_eagle3_config
from engine.errors import CheckpointError, UnsupportedModelError
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY

IDS = "eagle_aux_hidden_state_layer_ids"
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "draft_vocab_size": 100,
    "norm_before_residual": True,
    "eagle_config": {IDS: [1, 4, 7], "use_aux_hidden_state": True},
}


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    """A folder with the base configuration and some keys changed."""
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
    return tmp_path


def test_every_field_is_read(tmp_path: Path) -> None:
    """The decoder's shape, and the keys that only heads have."""
    config = read_eagle3_config(folder_of(tmp_path, target_hidden_size=40))

    decoder = config.decoder
    assert (decoder.vocab_size, decoder.hidden_size, decoder.intermediate_size) == (260, 32, 48)
    assert (decoder.num_layers, decoder.num_heads, decoder.num_kv_heads) == (1, 4, 2)
    assert (decoder.head_dim, decoder.rms_norm_eps, decoder.rope_theta) == (12, 1e-5, 5e5)
    assert (decoder.qkv_bias, decoder.mlp_bias, decoder.rope_scaling) == (False, False, None)
    assert decoder.max_position_embeddings == 256
    assert (config.draft_vocab_size, config.target_hidden_size) == (100, 40)
    assert config.feature_layers == (1, 4, 7)
    assert config.norm_before_residual is True


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_both_names_are_known(tmp_path: Path, architecture: str) -> None:
    """That of the training tools and that of vLLM."""
    folder = folder_of(tmp_path, architectures=[architecture])

    assert is_eagle3(folder)
    assert read_eagle3_config(folder).draft_vocab_size == 100


def test_the_known_names() -> None:
    """Nothing else is taken for a head of this kind."""
    assert frozenset({"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"}) == ARCHITECTURES


@pytest.mark.parametrize(
    "architectures",
    [
        ["LlamaForCausalLM"],
        ["LlamaForCausalLMEagle"],
        ["LlamaForCausalLMEagle3", "LlamaForCausalLM"],
        [["LlamaForCausalLMEagle3"]],
        [],
        "LlamaForCausalLMEagle3",
        None,
    ],
    ids=str,
)
def test_other_folders_are_no_heads(tmp_path: Path, architectures: object) -> None:
    """Whole models, older heads, and lists of two."""
    assert not is_eagle3(folder_of(tmp_path, architectures=architectures))


def test_case_folders_are_told_apart() -> None:
    """A head in the public layout, and a whole model."""
    assert is_eagle3(CASES / "H22_draft_head_without_lm_head")
    assert not is_eagle3(HEALTHY)


def test_a_folder_without_config_is_an_error(tmp_path: Path) -> None:
    """Neither a head nor a model."""
    for read in (is_eagle3, read_eagle3_config):
        with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
            read(tmp_path)


@pytest.mark.parametrize("value", [True, False])
def test_the_residual_is_as_written(tmp_path: Path, value: bool) -> None:
    """Both values are understood."""
    folder = folder_of(tmp_path, norm_before_residual=value)

    assert read_eagle3_config(folder).norm_before_residual is value


def test_the_targets_width_is_the_heads_unless_written(tmp_path: Path) -> None:
    """Most checkpoints leave it out."""
    assert read_eagle3_config(folder_of(tmp_path)).target_hidden_size == 32


# ---------------------------------------------------------------- layer ids


def test_layer_ids_are_found_in_both_places(tmp_path: Path) -> None:
    """Inside `eagle_config`, or at the top, also beside an `eagle_config` without them."""
    places: list[dict[str, Any]] = [
        {"eagle_config": {IDS: [0, 2, 5]}},
        {"eagle_config": None, IDS: [0, 2, 5]},
        {"eagle_config": {}, IDS: [0, 2, 5]},
        {"eagle_config": {IDS: None}, IDS: [0, 2, 5]},
        {"eagle_config": {IDS: [0, 2, 5]}, IDS: [1, 2, 3]},
    ]

    for place in places:
        assert read_eagle3_config(folder_of(tmp_path, **place)).feature_layers == (0, 2, 5)


@pytest.mark.parametrize("inside", [True, False], ids=["eagle_config", "top"])
@pytest.mark.parametrize(
    "ids",
    [
        [],
        [1, 4],
        [1, 4, 7, 9],
        [4, 1, 7],
        [1, 1, 7],
        [-1, 4, 7],
        [1, 4.0, 7],
        [1, True, 7],
        [False, 4, 7],
        ["1", "4", "7"],
        [1, 4, None],
        "147",
        {"1": 4},
        7,
    ],
    ids=str,
)
def test_layer_ids_that_are_no_three_ascending_layers(
    tmp_path: Path, ids: object, inside: bool
) -> None:
    """The message shows them and where they stand."""
    place = {"eagle_config": {IDS: ids}} if inside else {"eagle_config": None, IDS: ids}
    where = rf"eagle_config\.{IDS}" if inside else IDS

    with pytest.raises(CheckpointError, match=rf"json: {where} = .*3 layers.*ascending"):
        read_eagle3_config(folder_of(tmp_path, **place))


def test_missing_layer_ids_are_not_guessed(tmp_path: Path) -> None:
    """A guess drafts badly without any error."""
    places: list[dict[str, Any]] = [{"eagle_config": None}, {"eagle_config": {}}]
    for place in places:
        with pytest.raises(CheckpointError, match=f"{IDS} = null"):
            read_eagle3_config(folder_of(tmp_path, **place))


# ---------------------------------------------------------------- refusals


def test_a_residual_that_is_not_written_out_is_refused(tmp_path: Path) -> None:
    """Readers disagree on what its absence means; null is absence."""
    absent = {key: value for key, value in BASE.items() if key != "norm_before_residual"}
    for values in (absent, absent | {"norm_before_residual": None}):
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match="norm_before_residual = null: must be written"):
            read_eagle3_config(tmp_path)


@pytest.mark.parametrize("num_layers", [2, 4])
def test_heads_of_several_layers_are_refused(tmp_path: Path, num_layers: int) -> None:
    """Only the first of them would be read."""
    with pytest.raises(UnsupportedModelError, match=f"num_hidden_layers = {num_layers}: .*one"):
        read_eagle3_config(folder_of(tmp_path, num_hidden_layers=num_layers))


@pytest.mark.parametrize("key", ["norm_output", "norm_before_fc", "fc_norm"])
def test_eagle_3_1_is_refused(tmp_path: Path, key: str) -> None:
    """Its extra norms change what is computed; switched off they do not."""
    with pytest.raises(UnsupportedModelError, match=rf"{key} = true: EAGLE-3\.1"):
        read_eagle3_config(folder_of(tmp_path, **{key: True}))

    for neutral in (False, None):
        assert read_eagle3_config(folder_of(tmp_path, **{key: neutral})).feature_layers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("draft_vocab_size", None),
        ("draft_vocab_size", 0),
        ("draft_vocab_size", 261),
        ("draft_vocab_size", "100"),
        ("draft_vocab_size", True),
        ("target_hidden_size", 0),
        ("target_hidden_size", 40.5),
        ("norm_before_residual", "yes"),
        ("norm_before_residual", 1),
        ("norm_output", "no"),
        ("eagle_config", [1, 4, 7]),
        ("hidden_size", None),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("num_hidden_layers", 0),
    ],
)
def test_a_malformed_key_is_named(tmp_path: Path, key: str, value: object) -> None:
    """With the file; no traceback of another kind."""
    with pytest.raises(CheckpointError, match=rf"config\.json: {key}\b"):
        read_eagle3_config(folder_of(tmp_path, **{key: value}))


def test_the_draft_vocabulary_may_be_the_whole(tmp_path: Path) -> None:
    """And as small as one token."""
    for size in (1, 260):
        folder = folder_of(tmp_path, draft_vocab_size=size)
        assert read_eagle3_config(folder).draft_vocab_size == size


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", {"quant_method": "fp8"}),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("sliding_window", 8),
        ("layer_types", ["sliding_attention"]),
    ],
)
def test_what_whole_models_are_refused_for_counts_here_too(
    tmp_path: Path, key: str, value: object
) -> None:
    """The layer is read by the same rules."""
    with pytest.raises(UnsupportedModelError, match=key):
        read_eagle3_config(folder_of(tmp_path, **{key: value}))

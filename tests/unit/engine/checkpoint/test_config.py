"""Reading config.json: what is supported, and refusals that name the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.config import read_config
from engine.checkpoint.rope_config import LinearScaling, Llama3Scaling
from engine.errors import CheckpointError, UnsupportedModelError
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY, QWEN, edited_copy

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def test_read_config_reads_every_field() -> None:
    """A plain Llama folder gives its own numbers."""
    config = read_config(HEALTHY)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (260, 32, 48)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_position_embeddings) == (8, 256)
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 1e4, None)
    assert (config.tie_word_embeddings, config.qkv_bias, config.mlp_bias) == (False, False, False)
    assert (config.bos_token_id, config.eos_token_ids) == (257, (258,))


def test_case_h7_is_tied() -> None:
    """A folder without an output head that says so is a tied model."""
    assert read_config(CASES / "H7_tied_no_head").tie_word_embeddings


def test_case_h10_has_llama3_scaling() -> None:
    """The llama3 rotary scaling is read with its four numbers."""
    assert read_config(CASES / "H10_rope_llama3").rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    )


def test_case_h11_has_linear_scaling_under_the_old_key() -> None:
    """The kind of scaling is also found under its older name `type`."""
    scaling = read_config(CASES / "H11_rope_linear_old_key").rope_scaling
    assert scaling == LinearScaling(factor=4.0)


def test_case_h15_has_a_head_size_of_its_own() -> None:
    """An explicit head_dim counts, not hidden_size / heads."""
    assert read_config(CASES / "H15_head_dim").head_dim == 16


@pytest.mark.parametrize("case", ["H16_qkv_bias", "H19_window_switched_off"])
def test_qwen2_cases_have_projection_biases(case: str) -> None:
    """The Qwen2 layout has q, k and v biases though no key says so; an idle window is inert."""
    config = read_config(CASES / case)
    assert config.qkv_bias
    assert config.head_dim == 8


def test_case_h20_is_refused_as_quantised() -> None:
    """Block-scaled fp8 is refused with the name of the method."""
    with pytest.raises(UnsupportedModelError, match=r"quantization_config \(fp8\)"):
        read_config(CASES / "H20_fp8_block_scales")


def test_case_h22_is_refused_as_a_draft_head() -> None:
    """A feature-fusion draft head is not mistaken for a model."""
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLMEagle3 is a draft head"):
        read_config(CASES / "H22_draft_head_without_lm_head")


def test_eos_ids_are_the_union_of_both_files(tmp_path: Path) -> None:
    """End tokens of config.json and of generation_config.json all count, lists included."""
    folder = edited_copy(tmp_path / "m", config={"eos_token_id": [3, 258]})
    (folder / "generation_config.json").write_text('{"eos_token_id": [259, 3]}')
    assert read_config(folder).eos_token_ids == (3, 258, 259)


def test_absent_special_tokens_are_none(tmp_path: Path) -> None:
    """A model without special tokens has no first token and an empty set of end tokens."""
    folder = edited_copy(tmp_path / "m", without=("bos_token_id", "eos_token_id"))
    (folder / "generation_config.json").unlink()
    config = read_config(folder)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, (5e5, None)),
        ({"rope_parameters": {"rope_theta": 5e5}}, (5e5, None)),
        ({"rope_parameters": {"rope_type": "default", "factor": 1.0}}, (1e4, None)),
        ({"rope_scaling": {}}, (1e4, None)),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 7.0}},
            (7.0, LinearScaling(factor=2.0)),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}},
            (1e4, LinearScaling(factor=2.0)),
        ),
    ],
)
def test_rope_spellings(tmp_path: Path, settings: dict[str, Any], expected: object) -> None:
    """Old and new spellings of the rotary settings mean the same."""
    folder = edited_copy(tmp_path / "m", config=settings, without=("rope_theta",))
    config = read_config(folder)
    assert (config.rope_theta, config.rope_scaling) == expected


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", "mrope", "later"])
def test_other_rope_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    """A rotary scaling that is not computed is never ignored."""
    folder = edited_copy(tmp_path / "m", config={"rope_scaling": {"type": kind, "factor": 2.0}})
    with pytest.raises(UnsupportedModelError, match=f"rope type '{kind}'"):
        read_config(folder)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rope_scaling": {"factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": ["linear"], "factor": 2.0}}, "rope type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor = 0"),
        ({"rope_scaling": {"rope_type": "linear", "type": "llama3", "factor": 2}}, "contradicts"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope_scaling.factor = 2.0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "attention_factor": 1.2}}, "attention_factor"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is given twice"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
            "contradict",
        ),
    ],
)
def test_unclear_rope_settings_are_refused(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    """Missing, contradictory or unknown rotary settings are refused by name."""
    folder = edited_copy(tmp_path / "m", config=settings)
    with pytest.raises(CheckpointError, match=named):
        read_config(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", ["MixtralForCausalLM"]),
        ("architectures", ["Qwen3ForCausalLM"]),
        ("architectures", ["Gemma2ForCausalLM"]),
        ("attention_bias", True),
        ("attention_multiplier", 0.5),
        ("attn_logit_softcapping", 30.0),
        ("auto_map", {"AutoModelForCausalLM": "modeling.Model"}),
        ("embedding_multiplier", 12.0),
        ("hidden_act", "gelu"),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("logit_scale", 0.25),
        ("logits_scaling", 8.0),
        ("mlp_bias", True),
        ("num_local_experts", 8),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "gptq"}),
        ("residual_multiplier", 0.2),
        ("rope_interleaved", True),
        ("sliding_window", 4096),
    ],
)
def test_settings_that_change_the_computation_are_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    """Every setting that the engine does not compute is refused by its name or value."""
    folder = edited_copy(tmp_path / "m", config={key: value})
    with pytest.raises(UnsupportedModelError) as caught:
        read_config(folder)
    message = str(caught.value)
    assert str(folder / "config.json") in message
    assert key in message or str(value[0] if isinstance(value, list) else value) in message
    assert "\n" not in message


def test_neutral_settings_are_accepted(tmp_path: Path) -> None:
    """The same keys at values that change nothing do not stand in the way."""
    neutral = {
        "attention_multiplier": None,
        "layer_types": ["full_attention", "full_attention"],
        "logit_scale": 1.0,
        "partial_rotary_factor": 1.0,
        "pretraining_tp": 2,
        "residual_multiplier": 1,
        "rope_interleaved": False,
        "sliding_window": None,
        "some_key_of_a_training_tool": 7,
    }
    folder = edited_copy(tmp_path / "m", config=neutral)
    assert read_config(folder) == read_config(HEALTHY)


def test_active_qwen2_window_is_refused(tmp_path: Path) -> None:
    """A sliding window that is switched on changes attention and is refused."""
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    folder = edited_copy(tmp_path / "m", base=QWEN, config=window)
    with pytest.raises(UnsupportedModelError, match="sliding_window = 8"):
        read_config(folder)


def test_qwen2_window_above_the_last_layer_is_accepted(tmp_path: Path) -> None:
    """A switched-on window that starts after the last layer reaches no layer."""
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    folder = edited_copy(tmp_path / "m", base=QWEN, config=window)
    assert read_config(folder).num_layers == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", None),
        ("architectures", ["LlamaForCausalLM", "Qwen2ForCausalLM"]),
        ("model_type", "mistral"),
        ("vocab_size", "260"),
        ("vocab_size", True),
        ("hidden_size", 0),
        ("num_hidden_layers", 10**9),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("inf")),
        ("rope_theta", "10000"),
        ("tie_word_embeddings", "yes"),
        ("bos_token_id", 260),
        ("eos_token_id", 260),
        ("eos_token_id", [258, -1]),
        ("rope_scaling", "linear"),
    ],
)
def test_malformed_values_are_refused(tmp_path: Path, key: str, value: object) -> None:
    """A value of the wrong type or range is refused with the file and the key."""
    folder = edited_copy(tmp_path / "m", config={key: value})
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"]
)
def test_missing_sizes_are_refused(tmp_path: Path, key: str) -> None:
    """Sizes are never guessed."""
    folder = edited_copy(tmp_path / "m", without=(key,))
    with pytest.raises(CheckpointError, match=f"{key} is missing"):
        read_config(folder)


def test_hidden_size_must_split_into_heads(tmp_path: Path) -> None:
    """Without a head_dim the hidden size must be a multiple of the heads."""
    folder = edited_copy(tmp_path / "m", config={"hidden_size": 33}, without=("head_dim",))
    with pytest.raises(CheckpointError, match="hidden_size = 33"):
        read_config(folder)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "Git LFS pointer"),
    ],
)
def test_unreadable_config_is_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    """Whatever stands in config.json, the answer is one line that names the file."""
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """A folder that is not there is one line, not a traceback of the file system."""
    with pytest.raises(CheckpointError, match=r"absent/config\.json: no such file"):
        read_config(tmp_path / "absent")


def test_malformed_generation_config_is_named(tmp_path: Path) -> None:
    """An unreadable generation_config.json is not skipped: it may hold the only end token."""
    folder = edited_copy(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "stop"}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        read_config(folder)

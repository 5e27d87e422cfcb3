"""The configuration of a checkpoint: what the engine can compute, and refusals by name.

Two decoder layouts are read: Llama, and Qwen2 with full attention. They are one computation
except for the biases that Qwen2 keeps on the q, k and v projections.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.files import JsonObject, read_json
from engine.checkpoint.rope_config import RopeScaling, read_rope
from engine.errors import CheckpointError, UnsupportedModelError

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
_DRAFT_HEAD_MARKS = ("eagle", "medusa", "mtp", "dflash", "dspark", "speculator", "draft")
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 1000

_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "block_configs": (),
    "clip_qkv": (),
    "compression_config": (),
    "draft_vocab_size": (),
    "eagle_config": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "medusa_num_heads": (),
    "mlp_bias": (False,),
    "n_routed_experts": (0,),
    "no_rope_layers": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "rotary_pct": (1,),
    "scale_depth": (),
    "scale_emb": (1,),
    "speculators_config": (),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
}
"""Keys that change the computation when set, with the values that leave it alone.

`null` is neutral for each of them. A checkpoint that uses one is refused, because a reader
that skips the key produces fluent and wrong text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and settings of a decoder.

    Attributes:
        vocab_size: Rows of the embedding; may exceed the tokenizer's ids (padding rows).
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of a head, even; not always `hidden_size / num_heads`.
        rms_norm_eps: Added to the mean square in every RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How the frequencies are stretched, or None.
        tie_word_embeddings: The output head is the embedding; no head on disk is read.
        qkv_bias: The q, k and v projections have biases.
        mlp_bias: Always False: biases in the MLP are refused.
        max_position_embeddings: Longest sequence the model was made for, tokens.
        bos_token_id: First token of a sequence, or None.
        eos_token_ids: Tokens that end a generation, ascending; may be empty.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    mlp_bias: bool = False
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json`, and the end tokens of `generation_config.json` where there is one.

    Args:
        folder: A model folder in the Hugging Face layout.

    Raises:
        CheckpointError: A file or a required key is missing or malformed.
        UnsupportedModelError: The model computes something that the engine does not.
    """
    config = read_json(folder / CONFIG_NAME)
    return read_decoder(config, folder, _read_architecture(config))


def read_decoder(config: JsonObject, folder: Path, architecture: str) -> ModelConfig:
    """Shape and settings of the decoder layers that a `config.json` describes.

    Args:
        config: The file.
        folder: Where it lies; its `generation_config.json` is read too.
        architecture: Whose conventions it follows, one of the supported ones.

    Raises:
        CheckpointError: A required key is missing or malformed.
        UnsupportedModelError: The model computes something that the engine does not.
    """
    _refuse_unsupported(config, architecture)
    vocab_size = config.integer("vocab_size", low=1, high=_MAX_SIZE)
    hidden_size = config.integer("hidden_size", low=1, high=_MAX_SIZE)
    num_layers = config.integer("num_hidden_layers", low=1, high=_MAX_LAYERS)
    num_heads = config.integer("num_attention_heads", low=1, high=_MAX_SIZE)
    _refuse_windows(config, architecture, num_layers)
    rope_theta, rope_scaling = read_rope(config)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", low=1, high=_MAX_SIZE),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_read_num_kv_heads(config, num_heads),
        head_dim=_read_head_dim(config, hidden_size, num_heads),
        rms_norm_eps=config.positive("rms_norm_eps", default=1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        qkv_bias=architecture == "Qwen2ForCausalLM",
        max_position_embeddings=config.integer("max_position_embeddings", low=1, high=_MAX_SIZE),
        bos_token_id=_read_bos(config, vocab_size),
        eos_token_ids=_read_eos(config, folder, vocab_size),
    )


def _read_architecture(config: JsonObject) -> str:
    listed = config.values.get("architectures")
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], str):
        raise config.error("architectures", "must name exactly one architecture")
    name: str = listed[0]
    if name not in _MODEL_TYPES:
        if any(mark in name.lower() for mark in _DRAFT_HEAD_MARKS):
            raise UnsupportedModelError(
                f"{config.path}: {name} is a draft head, not a whole model; not supported"
            )
        supported = ", ".join(_MODEL_TYPES)
        raise UnsupportedModelError(
            f"{config.path}: architecture {name} is not supported (supported: {supported})"
        )
    if config.values.get("model_type") not in (None, _MODEL_TYPES[name]):
        raise config.error("model_type", f"contradicts the architecture {name}")
    return name


def _refuse_unsupported(config: JsonObject, architecture: str) -> None:
    quantization = config.values.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModelError(
            f"{config.path}: quantization_config ({method or 'no quant_method'}) is not supported; "
            "use the unquantised checkpoint"
        )
    for key, neutral in _NEUTRAL_VALUES.items():
        value = config.values.get(key)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(str(config.error(key, "not supported")))
    if config.values.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(str(config.error("hidden_act", "only silu is supported")))
    auto_map = config.values.get("auto_map")
    if isinstance(auto_map, dict) and "AutoModelForCausalLM" in auto_map:
        raise UnsupportedModelError(
            f"{config.path}: auto_map asks for model code of its own beside {architecture}, "
            "not supported"
        )


def _refuse_windows(config: JsonObject, architecture: str, num_layers: int) -> None:
    """Refuse sliding-window attention that is switched on; a switched-off size is inert."""
    layer_types = config.values.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    ):
        raise UnsupportedModelError(
            str(config.error("layer_types", "only full_attention is supported"))
        )
    # The Qwen2 layout has its own switch, off unless set; other writers have only the size.
    switched_on = config.flag("use_sliding_window", default=architecture != "Qwen2ForCausalLM")
    first_layer = config.integer("max_window_layers", low=0, high=_MAX_SIZE, default=0)
    window = config.values.get("sliding_window")
    if switched_on and window is not None and first_layer < num_layers:
        raise UnsupportedModelError(
            str(config.error("sliding_window", "sliding-window attention is not supported"))
        )


def _read_num_kv_heads(config: JsonObject, num_heads: int) -> int:
    count = config.integer("num_key_value_heads", low=1, high=_MAX_SIZE, default=num_heads)
    if num_heads % count:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads = {num_heads}")
    return count


def _read_head_dim(config: JsonObject, hidden_size: int, num_heads: int) -> int:
    if config.values.get("head_dim") is None and hidden_size % num_heads:
        raise config.error("hidden_size", f"must be a multiple of {num_heads} attention heads")
    head_dim = config.integer("head_dim", low=1, high=_MAX_SIZE, default=hidden_size // num_heads)
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(
            f"{config.path}: head_dim = {head_dim}: rotary positions need an even number"
        )
    return head_dim


def _read_bos(config: JsonObject, vocab_size: int) -> int | None:
    if config.values.get("bos_token_id") is None:
        return None
    return config.integer("bos_token_id", low=0, high=vocab_size - 1)


def _read_eos(config: JsonObject, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Union of both files: each is the only complete one in some published checkpoints."""
    found = _token_ids(config, vocab_size)
    generation_path = folder / GENERATION_CONFIG_NAME
    if generation_path.exists():
        found |= _token_ids(read_json(generation_path), vocab_size)
    return tuple(sorted(found))


def _token_ids(source: JsonObject, vocab_size: int) -> set[int]:
    value: Any = source.values.get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for token in listed:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise source.error("eos_token_id", f"must hold ids from 0 to {vocab_size - 1}")
    return set(listed)

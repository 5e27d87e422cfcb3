"""Turn a GGUF file of the Llama architecture into a Hugging Face-layout model folder.

The folder holds the same weights, dequantised to bfloat16, so that this engine and any other
that reads the common layout run the very same model. What the conversion does not understand
it refuses by name, metadata keys included.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.config import CONFIG_NAME, GENERATION_CONFIG_NAME, read_config
from engine.checkpoint.files import LFS_POINTER_PROBLEM, is_lfs_pointer
from engine.checkpoint.gguf_tokenizer import write_tokenizer
from engine.checkpoint.safetensors_reader import WEIGHTS_NAME, read_weights
from engine.errors import CheckpointError, UnsupportedModelError, WeightsError

_ARCHITECTURE = "llama"
_SIZES = {
    "max_position_embeddings": "llama.context_length",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
}
_OTHER_KEYS = frozenset(
    {
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.attention.value_length",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.vocab_size",
    }
)
_SPECIAL_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_READABLE_TYPES = frozenset(
    GGMLQuantizationType[name]
    for name in (
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    )
)


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face-layout folder.

    The folder appears under its name only when it is complete, flushed to disk and readable
    by this engine; a failure leaves nothing behind.

    Args:
        gguf: File to read. Not modified.
        out: Folder to create; must not exist. Its parent is created.

    Raises:
        CheckpointError: `out` exists or cannot be written.
        UnsupportedModelError: Architecture, setting, tokenizer or quantisation not understood.
        WeightsError: The file is damaged, or its tensors are not those of the architecture.
        TokenizerError: The vocabulary is missing or inconsistent.
    """
    if out.exists():
        raise CheckpointError(f"{out}: already exists, not overwritten")
    reader = _open(gguf)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            folder = Path(scratch) / out.name
            folder.mkdir()
            _write_folder(reader, gguf, folder)
            for file in folder.iterdir():
                _flush_to_disk(file)
            folder.rename(out)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written ({error.strerror or error})") from error


def _open(gguf: Path) -> GGUFReader:
    try:
        if is_lfs_pointer(gguf):
            raise WeightsError(f"{gguf}: {LFS_POINTER_PROBLEM}")
        return GGUFReader(gguf)
    except OSError as error:
        raise WeightsError(f"{gguf}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise WeightsError(f"{gguf}: not a readable GGUF file, or cut short ({error})") from error


def _write_folder(reader: GGUFReader, gguf: Path, folder: Path) -> None:
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _read_settings(metadata, reader, gguf)
    _write_json(folder / CONFIG_NAME, config)
    ids = {name: metadata[key] for name, key in _SPECIAL_IDS.items() if key in metadata}
    _write_json(folder / GENERATION_CONFIG_NAME, ids)
    write_tokenizer(
        metadata, folder, source=gguf, max_length=int(config["max_position_embeddings"])
    )
    heads = {
        "attn_q.weight": int(config["num_attention_heads"]),
        "attn_k.weight": int(config["num_key_value_heads"]),
    }
    tensors = dict(_convert_tensor(tensor, heads, gguf) for tensor in reader.tensors)
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    # The writer makes a file only its owner can read; a serving process may be another user.
    (folder / WEIGHTS_NAME).chmod((folder / CONFIG_NAME).stat().st_mode)
    del tensors
    # Our own reader is the check that names, shapes and values are complete and finite.
    read_weights(folder, read_config(folder))


def _read_settings(metadata: Mapping[str, Any], reader: GGUFReader, gguf: Path) -> dict[str, Any]:
    if metadata.get("general.architecture") != _ARCHITECTURE:
        raise UnsupportedModelError(
            f"{gguf}: architecture {metadata.get('general.architecture')!r} is not supported "
            f"(supported: {_ARCHITECTURE!r})"
        )
    known = {*_SIZES.values(), *_OTHER_KEYS}
    unknown = sorted(key for key in metadata if key.startswith("llama.") and key not in known)
    if unknown:
        raise UnsupportedModelError(
            f"{gguf}: {unknown[0]} = {metadata[unknown[0]]!r} is not supported"
        )
    sizes = {name: _integer(metadata, key, gguf) for name, key in _SIZES.items()}
    num_heads = sizes["num_attention_heads"]
    head_dim = _read_head_dim(metadata, sizes["hidden_size"], num_heads, gguf)
    names = {tensor.name for tensor in reader.tensors}
    vocab_size = len(metadata.get("tokenizer.ggml.tokens") or [])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _integer(metadata, "llama.vocab_size", gguf, default=vocab_size),
        **sizes,
        "num_key_value_heads": _integer(
            metadata, "llama.attention.head_count_kv", gguf, default=num_heads
        ),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(metadata, "llama.attention.layer_norm_rms_epsilon", gguf),
        "rope_theta": _shortest(metadata, "llama.rope.freq_base", gguf, default=10000.0),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in names,
        **{name: metadata[key] for name, key in _SPECIAL_IDS.items() if key in metadata},
        "torch_dtype": "bfloat16",
    }


def _read_head_dim(
    metadata: Mapping[str, Any], hidden_size: int, num_heads: int, gguf: Path
) -> int:
    head_dim = _integer(
        metadata, "llama.attention.key_length", gguf, default=hidden_size // num_heads
    )
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if _integer(metadata, key, gguf, default=head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{gguf}: {key} = {metadata[key]} differs from the head size {head_dim}, "
                "not supported"
            )
    return head_dim


def _convert_tensor(
    tensor: ReaderTensor, heads: Mapping[str, int], gguf: Path
) -> tuple[str, Tensor]:
    """Name and bfloat16 values of one tensor in the Hugging Face layout."""
    name, part = _translate_name(tensor.name, gguf)
    if tensor.tensor_type not in _READABLE_TYPES:
        raise UnsupportedModelError(
            f"{gguf}: {tensor.name}: quantisation {tensor.tensor_type.name} is not supported"
        )
    values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    converted = torch.from_numpy(values)
    if part in heads:
        converted = _undo_rotary_order(converted, heads[part], f"{gguf}: {tensor.name}")
    return name, converted.to(torch.bfloat16).contiguous()


def _translate_name(name: str, gguf: Path) -> tuple[str, str]:
    """Hugging Face name of a tensor, and its name without the layer."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name], name
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if block != "blk" or not layer.isdecimal() or part not in _LAYER_NAMES:
        raise UnsupportedModelError(f"{gguf}: tensor {name} is not supported")
    return f"model.layers.{int(layer)}.{_LAYER_NAMES[part]}", part


def _undo_rotary_order(weight: Tensor, num_heads: int, where: str) -> Tensor:
    """Put the rows of a q or k projection back into half-split rotary order.

    GGUF stores the rows of each head so that the two members of a rotary pair are
    neighbours (0, d/2, 1, d/2+1, ...); the Hugging Face layout keeps the halves apart.

    Args:
        weight: [num_heads * head_dim, hidden_size].
        num_heads: Heads of this projection.
        where: File and tensor, for messages.
    """
    rows = weight.shape[0]
    if weight.dim() != 2 or rows % (2 * num_heads):
        raise WeightsError(
            f"{where}: shape {tuple(weight.shape)} does not split into {num_heads} heads"
        )
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _integer(metadata: Mapping[str, Any], key: str, gguf: Path, default: int | None = None) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModelError(f"{gguf}: {key} = {value!r}: must be one positive integer")
    return value


def _shortest(
    metadata: Mapping[str, Any], key: str, gguf: Path, default: float | None = None
) -> float:
    """The decimal that a float32 was written from: 1e-05, not 9.999999747378752e-06."""
    value = metadata.get(key, default)
    if not isinstance(value, float):
        raise UnsupportedModelError(f"{gguf}: {key} = {value!r}: must be a number")
    return float(str(np.float32(value)))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _flush_to_disk(path: Path) -> None:
    """Make a file survive a power cut before the rename that declares it complete."""
    with path.open("rb") as file:
        os.fsync(file.fileno())

"""A tiny GGUF file with known weights, written by the format's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from torch import Tensor

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIAL = ["<end>", "<start>"]
LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
TOKENS = [*SPECIAL, *LETTERS, "Ġ", "Ċ", "th", "the", "Ġthe"]
MERGES = ["t h", "th e", "Ġ the"]
TEMPLATE = "{% for m in messages %}<start>{{ m.content }}{% endfor %}"
PARTS = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (HIDDEN, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (HIDDEN // 2, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (HIDDEN // 2, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, HIDDEN)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
    "ffn_gate": ("mlp.gate_proj", (INNER, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (INNER, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, INNER)),
}


def names_and_shapes(tied: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF name of every tensor to its Hugging Face name and shape."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (len(TOKENS), HIDDEN)),
        "output_norm.weight": ("model.norm.weight", (HIDDEN,)),
    }
    if not tied:
        found["output.weight"] = ("lm_head.weight", (len(TOKENS), HIDDEN))
    for layer in range(LAYERS):
        for part, (name, shape) in PARTS.items():
            found[f"blk.{layer}.{part}.weight"] = (f"model.layers.{layer}.{name}.weight", shape)
    return found


def pair_rows(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows in GGUF order: within a head, row i is followed by row i + half."""
    size = weight.shape[0] // heads
    order = [
        head * size + half * (size // 2) + index
        for head in range(heads)
        for index in range(size // 2)
        for half in (0, 1)
    ]
    return weight[order]


def write_gguf(
    path: Path,
    *,
    tied: bool = True,
    quantisation: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
    metadata: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra_tensor: str | None = None,
) -> dict[str, Tensor]:
    """Write the file and return the bfloat16 weights under their Hugging Face names.

    Args:
        path: File to write.
        tied: Leave the output head out.
        quantisation: Of the matrices; norms stay float32.
        architecture: Name in the metadata.
        metadata: Keys to add or replace.
        without: Metadata keys and tensors to leave out.
        extra_tensor: Name of one more tensor to add.
    """
    generator = torch.Generator().manual_seed(0)
    writer = GGUFWriter(path, architecture)
    _add_metadata(writer, {**_metadata(), **(metadata or {})}, without)
    expected: dict[str, Tensor] = {}
    for name, (hf_name, shape) in names_and_shapes(tied).items():
        # Values that bfloat16 holds exactly, so that an unquantised file converts without loss.
        weight = torch.randn(shape, generator=generator).to(torch.bfloat16)
        expected[hf_name] = weight
        if name in without:
            continue
        stored = weight.float().numpy()
        if ".attn_q." in name or ".attn_k." in name:
            stored = pair_rows(stored, HEADS if ".attn_q." in name else KV_HEADS)
        if len(shape) == 1 or quantisation == GGMLQuantizationType.F32:
            writer.add_tensor(name, stored)
        else:
            writer.add_tensor(name, quantize(stored, quantisation), raw_dtype=quantisation)
    if extra_tensor is not None:
        writer.add_tensor(extra_tensor, np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _metadata() -> dict[str, Any]:
    return {
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add_metadata(writer: GGUFWriter, metadata: dict[str, Any], without: tuple[str, ...]) -> None:
    for key, value in metadata.items():
        if key in without:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)

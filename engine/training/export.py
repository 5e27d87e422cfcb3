"""Writes finished drafters in the public layouts that serving engines load."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.checkpoint.config import CONFIG_NAME, ModelConfig, read_config
from engine.checkpoint.eagle3_config import Eagle3Config
from engine.checkpoint.files import read_json
from engine.checkpoint.model_folder import (
    copy_tokenizer,
    new_folder,
    read_wanted,
    with_fewer_layers,
    write_model,
)
from engine.checkpoint.rope_config import LinearScaling
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD, expected_shapes
from engine.drafters.eagle3.head import Eagle3Head
from engine.errors import CheckpointError, WeightsError
from engine.training.pruned import PrunedDraft

_DTYPE = "bfloat16"


def write_eagle3(head: Eagle3Head, folder: Path) -> None:
    """Write an EAGLE-3 head: `config.json` and `model.safetensors`, weights in bfloat16.

    The embedding is not stored: the target lends its own.

    Args:
        head: The head.
        folder: Exists; see `engine.checkpoint.model_folder.new_folder`.
    """
    write_model(folder, eagle3_values(head.config), _stored(head))


def write_pruned(draft: PrunedDraft, target_folder: Path, folder: Path) -> None:
    """Write a layer-pruned draft: its layers and its final norm, in bfloat16.

    Embedding and output head are the target's and not stored; `assemble` adds them.

    Args:
        draft: The draft.
        target_folder: Whose configuration it shares but for the number of layers.
        folder: Exists; see `engine.checkpoint.model_folder.new_folder`.

    Raises:
        CheckpointError: The target's configuration cannot be read.
    """
    values = with_fewer_layers(
        read_json(target_folder / CONFIG_NAME).values, draft.config.num_layers
    )
    # Where the copy came from says nothing about the draft; the dtype is that of its file.
    kept = {key: value for key, value in values.items() if key not in ("_name_or_path", "dtype")}
    write_model(folder, {**kept, "torch_dtype": _DTYPE}, _stored(draft))


def assemble(folder: Path, target_folder: Path, out: Path) -> None:
    """Write a layer-pruned draft as a whole Hugging Face model, for engines that load drafts so.

    Args:
        folder: A draft as `write_pruned` writes it.
        target_folder: The target it was trained for.
        out: Folder to create; may exist if it is empty.

    Raises:
        CheckpointError: `out` is not empty or cannot be written, or a file cannot be used.
        WeightsError: The draft was made for another target, or tensors are missing or damaged.
    """
    config = read_config(folder)
    lent = (EMBEDDING,) if config.tie_word_embeddings else (EMBEDDING, OUTPUT_HEAD)
    tensors = read_wanted(folder, lambda name: name not in lent)
    tensors |= read_wanted(target_folder, lambda name: name in lent)
    _check(tensors, config, folder, target_folder)
    with new_folder(out) as scratch:
        write_model(scratch, read_json(folder / CONFIG_NAME).values, tensors)
        copy_tokenizer(target_folder, scratch)


def eagle3_values(config: Eagle3Config) -> dict[str, Any]:
    """`config.json` of an EAGLE-3 head, under the names that its readers agree on."""
    decoder = config.decoder
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": decoder.rms_norm_eps,
        "max_position_embeddings": decoder.max_position_embeddings,
        "vocab_size": decoder.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
            "use_aux_hidden_state": True,
        },
        "torch_dtype": _DTYPE,
    }
    if decoder.bos_token_id is not None:
        values["bos_token_id"] = decoder.bos_token_id
    if decoder.eos_token_ids:
        ids = list(decoder.eos_token_ids)
        values["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return values | _rope_values(decoder)


def _rope_values(decoder: ModelConfig) -> dict[str, Any]:
    """The rotary settings in the older spelling and in the newer one: readers know only one."""
    theta, scaling = decoder.rope_theta, decoder.rope_scaling
    if scaling is None:
        return {
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        }
    kind = "linear" if isinstance(scaling, LinearScaling) else "llama3"
    described = {"rope_type": kind, **asdict(scaling)}
    return {
        "rope_theta": theta,
        "rope_scaling": described,
        "rope_parameters": {**described, "rope_theta": theta},
    }


def _stored(module: nn.Module) -> dict[str, Tensor]:
    """The tensors as they are written: vocabulary maps as they are, the rest in bfloat16."""
    return {
        name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in module.state_dict().items()
    }


def _check(
    tensors: dict[str, Tensor], config: ModelConfig, folder: Path, target_folder: Path
) -> None:
    expected = expected_shapes(config)
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        lender = target_folder if missing[0] in (EMBEDDING, OUTPUT_HEAD) else folder
        raise WeightsError(f"{lender}: tensor {missing[0]} is missing")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise WeightsError(
                f"{folder}: {name} of {list(tensors[name].shape)} where the configuration wants "
                f"{list(shape)}: the draft was not made for {target_folder}"
            )
    unknown = sorted(tensors.keys() - expected.keys())
    if unknown:
        raise CheckpointError(f"{folder}: holds {unknown[0]}, which is no part of a pruned draft")

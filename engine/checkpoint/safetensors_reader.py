"""Read the tensors of a model folder from safetensors files, checked against its configuration.

Every tensor the architecture needs must be there with its exact shape, and nothing that would
change the computation may be left unused. Pickle files are never opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.files import LFS_POINTER_PROBLEM, is_lfs_pointer, one_line, read_json
from engine.errors import UnsupportedModelError, WeightsError

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
OUTPUT_HEAD = "lm_head.weight"

_PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".pkl", ".pt", ".pth"})
_FLOATING = frozenset({"F32", "BF16", "F16"})
# Rotary tables that older writers saved; they are computed from the configuration.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
_DRAFT_HEAD_TENSOR = re.compile(r"(d2t|t2d|fc|midlayer|medusa_head|mtp)\b|.*\beh_proj\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where a tensor is and what its file says about it."""

    shard: Path
    dtype: str
    shape: tuple[int, ...]


def read_weights(
    folder: Path, config: ModelConfig, lent: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Read and check every tensor of a model.

    Args:
        folder: A model folder with `model.safetensors`, or shards and their index.
        config: The configuration of the same folder.
        lent: Tensors of another model that stand in where the folder has none of that name; a
            draft need not bring the target's embedding once more.

    Returns:
        Hugging Face tensor name to tensor, in the dtype on disk, in memory of its own. A tied
        model has no `lm_head.weight`.

    Raises:
        WeightsError: A file or tensor is missing, damaged, of the wrong shape or not finite,
            or the weights exist only as a pickle.
        UnsupportedModelError: A tensor that the engine would leave unused, or its dtype.
    """
    expected = expected_shapes(config)
    stored = _read_headers(find_shards(folder))
    _refuse_unexpected(stored, expected, config)
    borrowed = {name: tensor for name, tensor in (lent or {}).items() if name not in stored}
    weights: dict[str, Tensor] = {}
    for name, shape in expected.items():
        if name not in borrowed:
            _check_stored(name, shape, stored.get(name), folder)
        elif tuple(borrowed[name].shape) != shape:
            raise WeightsError(
                f"{folder}: {name} is to be the target's, whose shape is "
                f"{list(borrowed[name].shape)}; config.json asks for {list(shape)}"
            )
        else:
            weights[name] = borrowed[name]
    _read_into(weights, stored, expected)
    if config.tie_word_embeddings and OUTPUT_HEAD in stored:
        _refuse_other_head(stored[OUTPUT_HEAD], weights[EMBEDDING])
    return weights


def read_tensors(
    folder: Path, expected: Mapping[str, tuple[int, ...]], optional: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Read exactly the tensors of a draft head, in the dtype on disk.

    Args:
        folder: As in `read_weights`.
        expected: Name to shape of every tensor the head has.
        optional: Names of them that may be missing.

    Raises:
        WeightsError: A file or tensor is missing, damaged, of the wrong shape or not finite.
        UnsupportedModelError: There is a tensor that the head has no use for.
    """
    stored = _read_headers(find_shards(folder))
    unknown = sorted(stored.keys() - expected.keys())
    if unknown:
        raise UnsupportedModelError(
            f"{stored[unknown[0]].shard}: tensor {unknown[0]} has no place in the draft head of "
            "config.json"
        )
    for name, shape in expected.items():
        if name in stored or name not in optional:
            _check_shape(name, shape, stored.get(name), folder)
        if name in stored and stored[name].dtype.startswith("F8"):
            raise UnsupportedModelError(
                f"{stored[name].shard}: tensor {name} has dtype {stored[name].dtype} "
                f"(supported: {', '.join(sorted(_FLOATING))})"
            )
    weights: dict[str, Tensor] = {}
    _read_into(weights, stored, expected)
    return weights


def _read_into(
    weights: dict[str, Tensor], stored: dict[str, _Stored], expected: Iterable[str]
) -> None:
    by_shard: dict[Path, list[str]] = {}
    for name, where in stored.items():
        if name in expected:
            by_shard.setdefault(where.shard, []).append(name)
    for shard, names in by_shard.items():
        with safe_open(shard, framework="pt") as file:
            for name in names:
                # A copy: the file is mapped, and a later write to it would change the model.
                weights[name] = file.get_tensor(name).clone()
                _refuse_non_finite(name, weights[name], shard)


def brings(folder: Path, name: str) -> bool:
    """Tell whether a model folder stores a tensor.

    Raises:
        WeightsError: Its files cannot be read.
    """
    return name in _read_headers(find_shards(folder))


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of every tensor a model of this configuration has."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (q_rows,),
            "self_attn.k_proj.bias": (kv_rows,),
            "self_attn.v_proj.bias": (kv_rows,),
        }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{part}": shape for part, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[OUTPUT_HEAD] = (config.vocab_size, hidden)
    return shapes


def find_shards(folder: Path) -> list[Path]:
    """Safetensors files of a model folder, each of them there and no pointer.

    Returns:
        The one file, or every shard that the index names, in order of name.

    Raises:
        WeightsError: None are there, one is missing, or it is unclear which to read.
    """
    single, index = folder / WEIGHTS_NAME, folder / INDEX_NAME
    if index.exists():
        names = _shard_names(index)
        if single.exists() and WEIGHTS_NAME not in names:
            raise WeightsError(
                f"{folder}: holds both {WEIGHTS_NAME} and {INDEX_NAME}; remove the one not meant"
            )
    elif single.exists():
        names = [WEIGHTS_NAME]
    else:
        raise WeightsError(_nothing_to_read(folder))
    for name in names:
        if not (folder / name).is_file():
            raise WeightsError(f"{folder}: shard {name} is missing; download the model again")
        if is_lfs_pointer(folder / name):
            raise WeightsError(f"{folder / name}: {LFS_POINTER_PROBLEM}")
    return [folder / name for name in names]


def _shard_names(index: Path) -> list[str]:
    weight_map = read_json(index).child("weight_map")
    if weight_map is None or not weight_map.values:
        raise WeightsError(f"{index}: weight_map is missing or empty")
    names = set()
    for tensor, name in weight_map.values.items():
        # A shard lies beside its index: a path in its place would read files from elsewhere.
        if not isinstance(name, str) or PurePosixPath(name).name != name or "\\" in name:
            raise WeightsError(f"{index}: {tensor}: shard {name!r} is not a plain file name")
        if not name.endswith(".safetensors"):
            raise WeightsError(f"{index}: {tensor}: shard {name} is not a safetensors file")
        names.add(name)
    return sorted(names)


def _nothing_to_read(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder"
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLE_SUFFIXES)
    if pickles:
        return (
            f"{folder / pickles[0]}: pickle weights can run code when loaded and are never opened; "
            "use a safetensors version of the model"
        )
    return f"{folder}: holds neither {WEIGHTS_NAME} nor {INDEX_NAME}"


def _read_headers(shards: list[Path]) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    for shard in shards:
        try:
            with safe_open(shard, framework="pt") as file:
                for name in file.keys():
                    if name in stored:
                        raise WeightsError(
                            f"{shard}: tensor {name} is also in {stored[name].shard.name}"
                        )
                    part = file.get_slice(name)
                    stored[name] = _Stored(
                        shard=shard, dtype=part.get_dtype(), shape=tuple(part.get_shape())
                    )
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                f"{shard}: damaged, cut short or not a safetensors file ({one_line(error)})"
            ) from error
    return stored


def _refuse_unexpected(
    stored: dict[str, _Stored], expected: dict[str, tuple[int, ...]], config: ModelConfig
) -> None:
    unexpected = sorted(
        name
        for name in stored
        if name not in expected
        and not name.endswith(_IGNORED_SUFFIX)
        and not (name == OUTPUT_HEAD and config.tie_word_embeddings)
    )
    if not unexpected:
        return
    shard = stored[unexpected[0]].shard
    for name in unexpected:
        if _DRAFT_HEAD_TENSOR.match(name):
            raise UnsupportedModelError(
                f"{shard}: tensor {name} belongs to a draft head, not to a whole model; "
                "draft heads are not supported"
            )
    more = f" (and {len(unexpected) - 1} more)" if len(unexpected) > 1 else ""
    raise UnsupportedModelError(
        f"{shard}: tensor {unexpected[0]}{more} has no place in the architecture of config.json"
    )


def _check_stored(name: str, shape: tuple[int, ...], stored: _Stored | None, folder: Path) -> None:
    if stored is not None and stored.dtype not in _FLOATING:
        supported = ", ".join(sorted(_FLOATING))
        raise UnsupportedModelError(
            f"{stored.shard}: tensor {name} has dtype {stored.dtype} (supported: {supported})"
        )
    _check_shape(name, shape, stored, folder)


def _check_shape(name: str, shape: tuple[int, ...], stored: _Stored | None, folder: Path) -> None:
    if stored is None:
        raise WeightsError(f"{folder}: tensor {name} is missing from the weights")
    if stored.shape != shape:
        raise WeightsError(
            f"{stored.shard}: tensor {name} has shape {list(stored.shape)}, "
            f"config.json asks for {list(shape)}"
        )


def _refuse_non_finite(name: str, tensor: Tensor, shard: Path) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{shard}: tensor {name} holds values that are not finite")


def _refuse_other_head(stored: _Stored, embedding: Tensor) -> None:
    """Refuse a tied model with a head of its own: readers disagree on which one counts."""
    with safe_open(stored.shard, framework="pt") as file:
        head = file.get_tensor(OUTPUT_HEAD)
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise WeightsError(
            f"{stored.shard}: config.json ties the output head to the embedding, "
            f"but {OUTPUT_HEAD} differs from it"
        )

"""Identify a model by its contents, so that a result can name the weights it was measured on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.checkpoint.config import CONFIG_NAME
from engine.checkpoint.files import one_line, read_json
from engine.checkpoint.safetensors_reader import find_shards
from engine.errors import TokenizerError, WeightsError

# Where a copy came from and who wrote it, not what it computes.
_PROVENANCE_KEYS = frozenset({"_name_or_path", "transformers_version"})


def weights_fingerprint(folder: Path) -> str:
    """SHA-256 over the configuration and every tensor: name, dtype, shape and bytes.

    The same weights give the same value however they are split into shards. One tensor at a
    time is in memory.

    Returns:
        64 lower-case hexadecimal digits.

    Raises:
        CheckpointError: `config.json` is missing or malformed.
        WeightsError: A weight file is missing, damaged or not safetensors.
    """
    config = read_json(folder / CONFIG_NAME).values
    kept = {key: value for key, value in config.items() if key not in _PROVENANCE_KEYS}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    try:
        for name, shard in sorted(_locations(find_shards(folder)).items()):
            with safe_open(shard, framework="pt") as file:
                tensor = file.get_tensor(name)
            digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{folder}: damaged or unreadable safetensors file ({one_line(error)})"
        ) from error
    return digest.hexdigest()


def tokenizer_sha256(folder: Path) -> str:
    """SHA-256 of `tokenizer.json`, the file that decides which ids a text has.

    Raises:
        TokenizerError: The file is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror or error})") from error


def _locations(shards: list[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), shard)
    return found

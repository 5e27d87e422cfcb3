"""Writing model folders: whole or not at all, readable for others, with the tokenizer beside."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint.config import CONFIG_NAME
from engine.checkpoint.safetensors_reader import WEIGHTS_NAME, find_shards
from engine.errors import CheckpointError, WeightsError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def require_free(out: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        CheckpointError: `out` is there and is not an empty folder.
    """
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be read ({error})") from error
    if taken:
        raise CheckpointError(f"{out}: exists and is not an empty folder; name another one")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends without an error.

    Args:
        out: Folder to create; may exist if it is empty. Missing parents are made.

    Yields:
        The folder to write into, beside `out`.

    Raises:
        CheckpointError: `out` is not empty or cannot be written.
    """
    try:
        require_free(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            # A folder made by mkdir follows the umask; the scratch folder is private.
            folder = Path(scratch) / "model"
            folder.mkdir()
            yield folder
            folder.rename(out)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out}: cannot be written ({error})") from error


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors` into an existing folder."""
    save_file(dict(tensors), folder / WEIGHTS_NAME, metadata={"format": "pt"})
    text = json.dumps(config, indent=2)
    (folder / CONFIG_NAME).write_text(text + "\n", encoding="utf-8")
    # safetensors makes its files private; the server may run as somebody else.
    shutil.copymode(folder / CONFIG_NAME, folder / WEIGHTS_NAME)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy what a model folder holds beside configuration and weights."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def with_fewer_layers(config: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """The configuration of a model that keeps `num_layers` layers of another one."""
    cut = {**config, "num_hidden_layers": num_layers}
    if isinstance(config.get("layer_types"), list):
        cut["layer_types"] = config["layer_types"][:num_layers]
    return cut


def read_wanted(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of a model folder whose names are wanted; the others are not read.

    Raises:
        CheckpointError: The index is malformed.
        WeightsError: A file is missing, damaged, or not a safetensors file.
    """
    found: dict[str, Tensor] = {}
    for path in find_shards(folder):
        found.update(_read_file(path, wanted))
    return found


def _read_file(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # the handle is not a mapping
                if wanted(name):
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: not a usable safetensors file ({error})") from error

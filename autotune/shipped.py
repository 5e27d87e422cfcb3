"""The drafters that come with spectuned, trained for the embedded default."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path


def shipped_drafters() -> dict[str, Path]:
    """Name to folder of every shipped drafter, smallest first.

    They are the target's own layers and a head for its states: useful to that target alone.
    """
    root = importlib.resources.files("assets") / "drafters"
    folders = [entry for entry in root.iterdir() if (entry / "config.json").is_file()]
    folders.sort(key=lambda entry: (_size(entry), entry.name))
    # An installed package is a folder on disk: model files are never read out of an archive.
    return {entry.name: Path(str(entry)) for entry in folders}


def _size(folder: Traversable) -> int:
    return Path(str(folder / "model.safetensors")).stat().st_size

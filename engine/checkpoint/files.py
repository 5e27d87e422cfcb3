"""Small helpers to read the files of a model folder, with errors that name the file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

_LFS_POINTER_PREFIX = b"version https://git-lfs.github.com/spec/"
MAX_JSON_BYTES = 256 * 1024 * 1024
"""Largest JSON file read into memory; the largest public tokenizers are about 35 MB."""


class JsonObject:
    """One JSON object from a file, with typed access whose errors name file, key and value.

    A key whose value is `null` counts as absent, as it does for the writers of these files.

    Attributes:
        path: The file the object was read from.
        values: The object as parsed.
    """

    def __init__(self, path: Path, values: dict[str, Any], inside: str = "") -> None:
        """Wrap `values`; `inside` is the key under which they were found, for messages."""
        self.path = path
        self.values = values
        self._prefix = f"{inside}." if inside else ""

    def error(self, key: str, problem: str) -> CheckpointError:
        """Build the error for a bad `key`: one line with file, key, value and `problem`."""
        shown = json.dumps(self.values.get(key))
        return CheckpointError(f"{self.path}: {self._prefix}{key} = {shown[:80]}: {problem}")

    def integer(self, key: str, *, low: int, high: int, default: int | None = None) -> int:
        """Integer under `key` within [low, high].

        Raises:
            CheckpointError: Absent without a default, not an integer, or out of range.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.path}: {self._prefix}{key} is missing")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(key, f"must be an integer from {low} to {high}")
        return value

    def positive(self, key: str, *, default: float | None = None) -> float:
        """Positive finite number under `key`.

        Raises:
            CheckpointError: Absent without a default, or not a positive finite number.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.path}: {self._prefix}{key} is missing")
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise self.error(key, "must be a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Boolean under `key`.

        Raises:
            CheckpointError: Present and not a boolean.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def child(self, key: str) -> JsonObject | None:
        """Object under `key`, or None when absent.

        Raises:
            CheckpointError: Present and not an object.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return JsonObject(self.path, value, inside=f"{self._prefix}{key}")


def read_json(path: Path) -> JsonObject:
    """Read a file that must hold one JSON object.

    Raises:
        CheckpointError: Missing, unreadable, a Git LFS pointer, too large, or not an object.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        if is_lfs_pointer(path):
            raise CheckpointError(f"{path}: {LFS_POINTER_PROBLEM}")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES} bytes, not read")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({one_line(error)})") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, holds {type(values).__name__}")
    return JsonObject(path, values)


LFS_POINTER_PROBLEM = (
    "is a Git LFS pointer, a small text file in place of the real one; "
    "run `git lfs pull` in the folder or download the model again"
)


def is_lfs_pointer(path: Path) -> bool:
    """Tell whether a file is the text stub that Git LFS leaves when a file was not fetched."""
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER_PREFIX)) == _LFS_POINTER_PREFIX


def one_line(error: BaseException) -> str:
    """Text of another library's error with its line breaks folded away."""
    return " ".join(str(error).split())

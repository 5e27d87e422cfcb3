"""JSON lines, plain or gzip, one by one, with a count of what could not be used and why."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from autotune.errors import TrafficError
from autotune.traffic.lines import LineReader
from autotune.traffic.reasons import SkipCounts, Skipped, SkipReason

_LOOKS_CUT = (SkipReason.NOT_JSON, SkipReason.NOT_UTF8, SkipReason.TOO_LONG)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[T]):
    """What one file gave.

    Attributes:
        used: What the usable lines hold, in file order; may be empty.
        skipped: Lines that were not used.
        cut_short: True where the file ends inside a line or an archive: it may still grow.
    """

    used: tuple[T, ...]
    skipped: SkipCounts
    cut_short: bool


def read_rows(
    path: Path, parse: Callable[[object, int], T], *, max_line_bytes: int, limit: int | None
) -> Rows[T]:
    """Reads the usable lines of a JSON-lines file.

    Memory is bounded by `max_line_bytes` beside what is kept.

    Args:
        path: Plain or gzip file; the content decides which.
        parse: From a decoded line and its number to what it holds; raises `Skipped`.
        max_line_bytes: Longer lines are skipped without being held.
        limit: Stop after this many usable lines; None reads to the end.

    Raises:
        TrafficError: The file cannot be read.
        ValueError: `max_line_bytes` or `limit` is below 1.
    """
    if max_line_bytes < 1:
        raise ValueError(f"max_line_bytes = {max_line_bytes}: must be 1 or more")
    if limit is not None and limit < 1:
        raise ValueError(f"limit = {limit}: must be 1 or more")
    _check_regular(path)
    lines = LineReader(path, max_line_bytes=max_line_bytes)
    used: list[T] = []
    skipped = SkipCounts()
    ends_inside_line = False
    try:
        for line in lines:
            try:
                text = _decode(line.data)
                if text:
                    used.append(parse(_load(text), line.number))
            except Skipped as skip:
                skipped.add(skip.reason, line.number)
                ends_inside_line = not line.complete and skip.reason in _LOOKS_CUT
                continue
            if limit is not None and len(used) >= limit:
                break
    except OSError as error:
        raise TrafficError(
            f"{path}: cannot be read ({error.strerror or type(error).__name__}); "
            "check the file's permissions"
        ) from error
    return Rows(used=tuple(used), skipped=skipped, cut_short=ends_inside_line or lines.cut_short)


def _check_regular(path: Path) -> None:
    # A pipe or a device would block or never end, so only regular files are opened.
    try:
        if path.is_file():
            return
        found = "is a directory" if path.is_dir() else "is not a regular file"
        if not path.exists():
            found = "does not exist"
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
    raise TrafficError(f"{path}: {found}; give a JSON-lines file, plain or gzip")


def _decode(data: bytes | None) -> str:
    """The text of a line; empty for a blank one."""
    if data is None:
        raise Skipped(SkipReason.TOO_LONG)
    # `from None` here and below: these errors carry the line itself.
    try:
        return data.removeprefix(codecs.BOM_UTF8).strip().decode()
    except UnicodeDecodeError:
        raise Skipped(SkipReason.NOT_UTF8) from None


def _load(text: str) -> object:
    try:
        row: object = json.loads(text)
    except (ValueError, RecursionError):
        raise Skipped(SkipReason.NOT_JSON) from None
    return row

"""Reads a whole file of requests: JSON lines, plain or gzip, with a count of what was skipped."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import TrafficError
from autotune.traffic.bodies import parse_request
from autotune.traffic.lines import LineReader
from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import SampledRequest

DEFAULT_MAX_LINE_BYTES = 1 << 20

_LOOKS_CUT = (SkipReason.NOT_JSON, SkipReason.NOT_UTF8, SkipReason.TOO_LONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """What one file gave.

    Attributes:
        requests: The usable requests, in file order.
        skipped: Lines that were not used, counted by reason.
        cut_short: True where the file ends inside a line or an archive: it may still grow.
    """

    requests: tuple[SampledRequest, ...]
    skipped: Mapping[str, int]
    cut_short: bool


def read_requests(
    path: Path, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, limit: int | None = None
) -> ReadResult:
    """Reads the requests of a JSON-lines file.

    Lines may be chat or completions bodies, batch envelopes or ShareGPT rows, also mixed.
    Memory is bounded by `max_line_bytes` beside the requests that are kept.

    Args:
        path: Plain or gzip file; the content decides which.
        max_line_bytes: Longer lines are skipped without being held.
        limit: Stop after this many usable requests; None reads to the end.

    Raises:
        TrafficError: The file cannot be read or holds no usable request.
        ValueError: `max_line_bytes` or `limit` is below 1.
    """
    if max_line_bytes < 1:
        raise ValueError(f"max_line_bytes = {max_line_bytes}: must be 1 or more")
    if limit is not None and limit < 1:
        raise ValueError(f"limit = {limit}: must be 1 or more")
    _check_regular(path)
    lines = LineReader(path, max_line_bytes=max_line_bytes)
    requests: list[SampledRequest] = []
    skipped: Counter[str] = Counter()
    ends_inside_line = False
    try:
        for line in lines:
            try:
                request = _parse_line(line.data, f"line-{line.number}")
            except Skipped as skip:
                skipped[skip.reason.value] += 1
                ends_inside_line = not line.complete and skip.reason in _LOOKS_CUT
                continue
            if request is not None:
                requests.append(request)
            if limit is not None and len(requests) >= limit:
                break
    except OSError as error:
        raise TrafficError(
            f"{path}: cannot be read ({error.strerror or type(error).__name__}); "
            "check the file's permissions"
        ) from error
    result = ReadResult(
        requests=tuple(requests),
        skipped=dict(sorted(skipped.items())),
        cut_short=ends_inside_line or lines.cut_short,
    )
    if not requests:
        raise TrafficError(_nothing_usable(path, result))
    return result


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
    raise TrafficError(f"{path}: {found}; give a JSON-lines file of requests, plain or gzip")


def _parse_line(data: bytes | None, request_id: str) -> SampledRequest | None:
    """The request of one line, or None for a blank line."""
    if data is None:
        raise Skipped(SkipReason.TOO_LONG)
    data = data.removeprefix(codecs.BOM_UTF8).strip()
    if not data:
        return None
    # `from None` throughout: these errors carry the line itself.
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Skipped(SkipReason.NOT_UTF8) from None
    try:
        row: object = json.loads(text)
    except (ValueError, RecursionError):
        raise Skipped(SkipReason.NOT_JSON) from None
    return parse_request(row, request_id)


def _nothing_usable(path: Path, result: ReadResult) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in result.skipped.items())
    found = f"no usable request (skipped: {counts})" if counts else "no requests in it"
    cut = ", and the file is cut short" if result.cut_short else ""
    return (
        f"{path}: {found}{cut}; give one chat or completions body, batch envelope or ShareGPT "
        "row per line (jq -c '.[]' turns a JSON array into lines)"
    )

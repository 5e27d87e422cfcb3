"""Reads a whole file of requests, with a count of what was skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import TrafficError
from autotune.traffic.bodies import parse_request
from autotune.traffic.records import SampledRequest
from autotune.traffic.rows import read_rows

DEFAULT_MAX_LINE_BYTES = 1 << 20


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

    Args:
        path: Plain or gzip file; the content decides which.
        max_line_bytes: Longer lines are skipped without being held.
        limit: Stop after this many usable requests; None reads to the end.

    Raises:
        TrafficError: The file cannot be read or holds no usable request.
        ValueError: `max_line_bytes` or `limit` is below 1.
    """
    rows = read_rows(
        path,
        lambda row, number: parse_request(row, f"line-{number}"),
        max_line_bytes=max_line_bytes,
        limit=limit,
    )
    if not rows.used:
        counts = ", ".join(f"{count} {reason}" for reason, count in rows.skipped.counts.items())
        found = f"no usable request (skipped: {counts})" if counts else "no requests in it"
        cut = ", and the file is cut short" if rows.cut_short else ""
        raise TrafficError(
            f"{path}: {found}{cut}; give one chat or completions body, batch envelope or ShareGPT "
            "row per line (jq -c '.[]' turns a JSON array into lines)"
        )
    return ReadResult(requests=rows.used, skipped=rows.skipped.counts, cut_short=rows.cut_short)

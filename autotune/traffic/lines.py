"""Lines of a plain or gzip file, in bounded memory whatever the file holds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

_GZIP_MAGIC = b"\x1f\x8b"
_DRAIN_BYTES = 1 << 16


class Line(NamedTuple):
    """One line of the file.

    Attributes:
        number: Counted from 1.
        data: The bytes without the line break; None where the line is over the limit.
        complete: False for a last line without a line break.
    """

    number: int
    data: bytes | None
    complete: bool


class LineReader:
    """Iterates over the lines of one file.

    A line over the limit is passed over in small pieces and never held. An archive that ends
    early, or is damaged from some point on, yields the whole lines before that point.

    Attributes:
        cut_short: True once iteration has met a damaged or unfinished archive.
    """

    def __init__(self, path: Path, *, max_line_bytes: int) -> None:
        self._path = path
        self._max_line_bytes = max_line_bytes
        self.cut_short = False

    def __iter__(self) -> Iterator[Line]:
        """Yields the lines in order.

        Raises:
            OSError: The file cannot be opened or read.
        """
        with self._path.open("rb") as raw:
            # The name may lie: rotated logs are often compressed without a new suffix.
            packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            if not packed:
                yield from self._lines(raw)
                return
            with gzip.open(raw) as unpacked:
                try:
                    yield from self._lines(cast(BinaryIO, unpacked))
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    self.cut_short = True

    def _lines(self, stream: BinaryIO) -> Iterator[Line]:
        number = 0
        limit = self._max_line_bytes + 1
        while data := stream.readline(limit):
            number += 1
            complete = data.endswith(b"\n")
            if complete or len(data) < limit:
                yield Line(number, data.rstrip(b"\r\n"), complete)
                continue
            while not complete and (data := stream.readline(_DRAIN_BYTES)):
                complete = data.endswith(b"\n")
            yield Line(number, None, complete)

"""Whole files: limits, damage, files that cannot be used, and what records refuse and show."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from autotune.errors import TrafficError
from autotune.traffic.lines import Line, LineReader
from autotune.traffic.reader import read_requests
from autotune.traffic.records import Message, SampledRequest


def _row(text: str) -> bytes:
    return json.dumps({"prompt": text}).encode() + b"\n"


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_blank_lines_and_windows_breaks(tmp_path: Path) -> None:
    """Blank lines count for nothing and a carriage return belongs to the line break."""
    path = _write(tmp_path / "a", b"\r\n" + _row("x").replace(b"\n", b"\r\n") + b"\n  \n")
    result = read_requests(path)
    assert [request.request_id for request in result.requests] == ["line-2"]
    assert result.skipped == {}
    assert not result.cut_short


def test_limit_stops_early(tmp_path: Path) -> None:
    """No more than `limit` requests are taken, and skipped lines do not use it up."""
    path = _write(tmp_path / "a", b"oops\n" + _row("a") + _row("b") + _row("c") + b"oops\n")
    result = read_requests(path, limit=2)
    assert [request.prompt for request in result.requests] == ["a", "b"]
    assert result.skipped == {"not JSON": 1}


@pytest.mark.parametrize(("excess", "used"), [(0, 2), (1, 1)])
def test_line_limit_is_exact(tmp_path: Path, excess: int, used: int) -> None:
    """A line of exactly the limit is used, one byte more is not; the next line always is."""
    path = _write(tmp_path / "a", _row("y" * 50) + _row("z"))
    limit = len(_row("y" * 50)) - 1
    result = read_requests(path, max_line_bytes=limit - excess)
    assert len(result.requests) == used
    assert result.requests[-1].prompt == "z"


def test_file_cut_inside_a_line(tmp_path: Path) -> None:
    """A last line that is half written is not used and marks the file as cut short."""
    result = read_requests(_write(tmp_path / "a", _row("a") + _row("b")[:-4]))
    assert [request.prompt for request in result.requests] == ["a"]
    assert result.cut_short


def test_last_line_without_break_is_whole(tmp_path: Path) -> None:
    """A missing line break at the end is no damage."""
    result = read_requests(_write(tmp_path / "a", _row("a") + _row("b").rstrip()))
    assert len(result.requests) == 2
    assert not result.cut_short


def test_archive_is_known_by_its_content(tmp_path: Path) -> None:
    """A rotated log is read whatever its name says; appended archives are read to the end."""
    path = _write(tmp_path / "log.1", gzip.compress(_row("a")) + gzip.compress(_row("b")))
    assert [request.prompt for request in read_requests(path).requests] == ["a", "b"]


def test_damaged_archive_keeps_what_came_before(tmp_path: Path) -> None:
    """Bytes that are no archive after a whole one end the reading without an error."""
    path = _write(tmp_path / "a.gz", gzip.compress(_row("a")) + b"rubbish")
    result = read_requests(path)
    assert len(result.requests) == 1
    assert result.cut_short


def test_deep_nesting_is_one_bad_line(tmp_path: Path) -> None:
    """A line that would exhaust the JSON parser's stack is counted like any other nonsense."""
    path = _write(tmp_path / "a", b"[" * 200_000 + b"\n" + b"1" * 5000 + b"\n" + _row("a"))
    result = read_requests(path)
    assert len(result.requests) == 1
    assert result.skipped == {"not JSON": 2}


def test_over_long_last_line_ends_the_lines(tmp_path: Path) -> None:
    """A line over the limit at the very end, without a break, is reported once."""
    path = _write(tmp_path / "a", b"ok\n" + b"x" * 100)
    assert list(LineReader(path, max_line_bytes=10)) == [
        Line(1, b"ok", True),
        Line(2, None, False),
    ]


def test_unusable_files_are_named(tmp_path: Path) -> None:
    """Missing, directory, pipe, empty and hopeless files each get one line with the path."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    expected = {
        tmp_path / "missing": "does not exist",
        tmp_path: "is a directory",
        pipe: "is not a regular file",
        _write(tmp_path / "empty", b""): "no requests in it",
        _write(tmp_path / "bad", b'{"a": 1}\nx\nx\n'): (
            "skipped: 1 no messages, prompt or conversations, 2 not JSON"
        ),
        _write(tmp_path / "cut", b'{"prompt": "a'): "cut short",
    }
    for path, words in expected.items():
        with pytest.raises(TrafficError) as caught:
            read_requests(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert words in message
        assert "\n" not in message


def test_read_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the system will not open gives the system's reason."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = _write(tmp_path / "a", _row("a"))
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(TrafficError, match="cannot be read \\(Permission denied\\)"):
        read_requests(path)


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"max_line_bytes": 0}])
def test_limits_must_be_positive(tmp_path: Path, arguments: dict[str, int]) -> None:
    """A limit of nothing is a mistake of the caller."""
    with pytest.raises(ValueError, match="must be 1 or more"):
        read_requests(tmp_path / "a", **arguments)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "either messages or a prompt"),
        ({"prompt": "a", "messages": (Message(role="user", content="b"),)}, "not both"),
        ({"prompt": "a", "temperature": float("inf")}, "temperature = inf"),
        ({"prompt": "a", "top_p": 0.0}, "top_p = 0.0"),
        ({"prompt": "a", "top_k": -1}, "top_k = -1"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens = 0"),
    ],
)
def test_records_refuse_impossible_values(fields: dict[str, object], words: str) -> None:
    """A request built in code is checked as well."""
    with pytest.raises(ValueError, match=words):
        SampledRequest(request_id="r", **fields)  # type: ignore[arg-type]


def test_records_show_no_text() -> None:
    """Neither prompt nor messages nor stop texts show in a representation; the settings do."""
    message = Message(role="user", content="MARKER")
    chat = SampledRequest(request_id="r", messages=(message,), stop=("MARKER",), temperature=0.5)
    bare = SampledRequest(request_id="r", prompt="MARKER")
    assert "MARKER" not in f"{message!r} {chat!r} {bare!r}"
    assert "temperature=0.5" in repr(chat)
    assert "6 characters" in repr(bare)


def test_digest_follows_content_only() -> None:
    """Position does not change a digest, every other field does."""
    base = SampledRequest(request_id="a", prompt="x", temperature=1)
    same = SampledRequest(request_id="b", prompt="x", temperature=1.0)
    others = [
        SampledRequest(request_id="a", prompt="y"),
        SampledRequest(request_id="a", messages=(Message(role="user", content="x"),)),
        SampledRequest(request_id="a", prompt="x", task="chat"),
        SampledRequest(request_id="a", prompt="x", temperature=0.9),
        SampledRequest(request_id="a", prompt="x", top_p=0.9),
        SampledRequest(request_id="a", prompt="x", top_k=1),
        SampledRequest(request_id="a", prompt="x", max_tokens=1),
        SampledRequest(request_id="a", prompt="x", stop=(".",)),
        SampledRequest(request_id="a", prompt="x", seed=0),
    ]
    digests = {request.digest() for request in (base, *others)}
    assert same.digest() == base.digest()
    assert len(digests) == len(others) + 1

"""Traffic files from public bug reports, read alone, with the outcome each must have."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path

import pytest

from autotune.errors import TrafficError
from autotune.traffic.reader import ReadResult, read_requests

CASES = Path(__file__).parents[3] / "data" / "traffic"


def _read(name: str) -> ReadResult:
    return read_requests(CASES / name)


def _ids(result: ReadResult) -> list[str]:
    return [request.request_id for request in result.requests]


def _texts(result: ReadResult) -> list[str]:
    return [request.messages[-1].content for request in result.requests]


def test_sharegpt_odd_rows_are_skipped_by_reason() -> None:
    """G1: stray entries are passed over, hopeless rows are counted, the answers are cut off."""
    result = _read("G1_sharegpt_odd_rows.jsonl")
    assert _ids(result) == ["line-1", "line-4", "line-5", "line-8"]
    assert result.skipped == {
        "empty conversation": 1,
        "no user text": 1,
        "text is not a string": 1,
        "no messages, prompt or conversations": 1,
    }
    assert _texts(result)[0] == "Name three uses for a paper clip."
    assert [message.role for message in result.requests[2].messages] == ["user"]


def test_byte_order_mark_is_dropped() -> None:
    """G3: the mark at the head of the file does not spoil the first line."""
    result = _read("G3_bom.jsonl")
    assert _texts(result) == ["First line after a byte order mark.", "Second line."]
    assert result.skipped == {}


def test_null_content_never_becomes_text() -> None:
    """G4: a turn without content stays empty, tool traffic is skipped as such."""
    result = _read("G4_null_content_tools.jsonl")
    assert _ids(result) == ["line-2"]
    assert result.skipped == {"tools": 1}
    assert [message.content for message in result.requests[0].messages] == [
        "Say hello.",
        "",
        "Try again.",
    ]


def test_content_parts_are_joined_in_order() -> None:
    """G6: text parts are joined; image, audio and empty content are skipped."""
    result = _read("G6_content_parts.jsonl")
    assert _texts(result) == ["Summarise the minutes.", "Part one.\nPart two."]
    assert result.skipped == {"image": 1, "audio": 1, "no user text": 1}


def test_developer_role_is_system() -> None:
    """G8: the newer name of the system role is understood."""
    (request,) = _read("G8_developer_role.jsonl").requests
    assert [message.role for message in request.messages] == ["system", "user"]


def test_archive_cut_short_gives_its_whole_lines() -> None:
    """G14: whole lines are used, the cut one is not, and the file is marked as cut short."""
    result = _read("G14_cut_short.jsonl.gz")
    assert _ids(result) == [f"line-{number}" for number in range(1, 25)]
    assert result.cut_short
    assert result.skipped == {}


def test_huge_line_is_never_held() -> None:
    """G16: a line of 24 MiB is skipped as too long and memory grows by far less than it."""
    tracemalloc.start()
    try:
        result = _read("G16_one_huge_line.jsonl.gz")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert _texts(result) == ["Before the long one.", "After the long one."]
    assert result.skipped == {"line too long": 1}
    assert peak_bytes < 8 << 20


def test_invalid_utf8_skips_its_line_only() -> None:
    """G19: the reader goes on after bytes that are no text."""
    result = _read("G19_invalid_utf8.jsonl")
    assert _texts(result) == ["Good line one.", "Good line two."]
    assert result.skipped == {"not UTF-8": 1}


def test_batch_envelope_is_unwrapped() -> None:
    """G24: the request is in `body`; other endpoints are skipped by reason."""
    result = _read("G24_batch_envelope.jsonl")
    assert _ids(result) == ["line-1", "line-3"]
    assert result.requests[0].max_tokens == 16
    assert result.requests[1].prompt == "Third in the batch."
    assert result.skipped == {"other endpoint": 1}


def test_secrets_stay_out_of_sight(caplog: pytest.LogCaptureFixture) -> None:
    """G23: no text shows in representations or logs; user names and headers are not even kept."""
    with caplog.at_level(logging.DEBUG):
        result = _read("G23_secrets.jsonl")
    shown = repr(result) + str(result) + caplog.text
    assert len(result.requests) == 2
    assert "MARKER" not in shown
    kept = "".join(_texts(result)) + "".join(_ids(result))
    assert "MARKER-PROMPT-0004" in kept
    assert "HEADER" not in kept
    assert "USER" not in kept


def test_secrets_stay_out_of_errors(tmp_path: Path) -> None:
    """G23: an error about a file quotes nothing of it, nor do the errors it came from."""
    path = tmp_path / "broken.jsonl"
    path.write_text('{"messages": "MARKER-A"}\n{"MARKER-B\n[MARKER-C]\n', encoding="utf-8")
    with pytest.raises(TrafficError, match="no usable request") as caught:
        read_requests(path)
    assert "MARKER" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None

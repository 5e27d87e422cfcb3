"""Settings of training: durations, ranges, and one line for everything that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.training.settings import TrainSettings


def parse(**values: Any) -> TrainSettings:
    """Settings with what is required."""
    return TrainSettings.parse({"method": "eagle3", "out": Path("/tmp/draft")} | values)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), (" 2m ", 120.0), (45, 45.0)],
)
def test_durations(text: str | int, seconds: float) -> None:
    """A number with its unit; a bare number from a program is seconds."""
    assert parse(budget=text).budget == seconds


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("budget", "soon", "90s, 30m or 1h"),
        ("budget", "30", "90s, 30m or 1h"),
        ("budget", "-3m", "90s, 30m or 1h"),
        ("budget", "0s", "from 1s to 168h"),
        ("budget", 0.5, "greater than or equal to 1"),
        ("budget", "9999h", "from 1s to 168h"),
        ("method", "medusa", "'layer-pruned' or 'eagle3'"),
        ("heldout_share", 0.0, "greater than 0"),
        ("heldout_share", 0.6, "less than or equal to 0.5"),
        ("num_heldout", 1, "greater than or equal to 2"),
        ("generation_share", 1.0, "less than 1"),
        ("max_corpus_gib", 0.0, "greater than 0"),
        ("draft_vocab_size", 0, "greater than or equal to 1"),
        ("num_layers", 0, "greater than or equal to 1"),
        ("learning_rate", 0.0, "greater than 0"),
        ("learning_rate", float("nan"), "less than or equal to 1"),
        ("batch_size", 0, "greater than or equal to 1"),
        ("max_len", 8, "greater than or equal to 16"),
        ("seed", -1, "greater than or equal to 0"),
        ("out", Path("/"), "must name a folder"),
        ("epochs", 3, "not permitted"),
    ],
)
def test_ranges(key: str, value: object, allowed: str) -> None:
    """The message names the key, the value and what is allowed, on one line."""
    with pytest.raises(ConfigError) as caught:
        parse(**{key: value})
    assert f"{key} = {value!r}: " in str(caught.value)
    assert allowed in str(caught.value)


def test_every_fault_is_told() -> None:
    """Not only the first."""
    with pytest.raises(ConfigError, match=r"num_layers = 0.*; seed = -1"):
        parse(num_layers=0, seed=-1)


def test_training_data_is_not_held_out() -> None:
    """One file for both would judge a drafter by what it has seen."""
    with pytest.raises(ConfigError, match="the same file"):
        parse(workload=Path("a.jsonl"), heldout=Path("a.jsonl"))


def test_the_budget_is_shared() -> None:
    """Two fifths for answers, unless there are answers already."""
    assert parse(budget="100s").generation_s == pytest.approx(40.0)
    assert parse(budget="100s").training_s == pytest.approx(60.0)
    given = parse(budget="100s", corpus=Path("corpus"))
    assert (given.generation_s, given.training_s) == (0.0, 100.0)


def test_the_work_folder_is_beside() -> None:
    """Under a name that says whose it is."""
    assert parse(out=Path("/a/draft.v1")).work == Path("/a/draft.v1.work")

"""Settings: defaults, normalisation, and one line for everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.errors import ConfigError
from autotune.settings import TuneSettings


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("batch_sizes", (), "at least one size"),
        ("batch_sizes", (0, 4), "1 to 1024"),
        ("batch_sizes", (2000,), "1 to 1024"),
        ("batch_sizes", ("many",), "integer"),
        ("max_num_speculative_tokens", 0, "greater than or equal to 1"),
        ("max_num_speculative_tokens", 33, "less than or equal to 32"),
        ("draft_temperatures", (), "at least one value"),
        ("draft_temperatures", (-0.1,), "0 to 10"),
        ("draft_temperatures", (11.0,), "0 to 10"),
        ("draft_temperatures", (float("nan"),), "0 to 10"),
        ("num_requests", 1, "greater than or equal to 2"),
        ("trials", 0, "greater than or equal to 1"),
        ("explore_blocks", 1, "greater than or equal to 2"),
        ("validate_blocks", 1, "greater than or equal to 2"),
        ("window_s", 0.0, "greater than 0"),
        ("window_s", 61.0, "less than or equal to 60"),
        ("window_s", float("nan"), "less than or equal to 60"),
        ("max_len", 8, "greater than or equal to 16"),
        ("dtype", "float16", "'auto', 'float32' or 'bfloat16'"),
        ("device", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("memory_bytes", 0, "greater than 0"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 2**32, "less than 4294967296"),
        ("drafters", {"off": "x"}, "taken by a built-in"),
        ("drafters", {"ngram": "x"}, "taken by a built-in"),
        ("drafters", {"layer-skip-3": "x"}, "taken by a built-in"),
        ("drafters", {"": "x"}, "needs a name"),
        ("ngram", "perhaps", "boolean"),
        ("layer_skip", "2", "tuple"),
        ("colour", "red", "not permitted"),
    ],
)
def test_a_wrong_value_is_one_line(key: str, value: Any, allowed: str) -> None:
    """Key, value and what is allowed, without a traceback or a line break."""
    with pytest.raises(ConfigError) as caught:
        TuneSettings.parse({key: value})

    message = str(caught.value)
    shown = value[0] if isinstance(value, tuple) and value == ("many",) else value
    assert message.startswith(key)
    assert f"= {shown!r}: " in message
    assert allowed in message
    assert "\n" not in message
    assert caught.value.exit_code == 2


def test_all_faults_are_named_at_once() -> None:
    """Nobody likes to be told one fault at a time."""
    with pytest.raises(ConfigError, match=r"trials = 0: .*; window_s = -1"):
        TuneSettings.parse({"trials": 0, "window_s": -1})


def test_lists_are_sorted_and_freed_of_repeats() -> None:
    """Batch sizes ascend; draft temperatures keep their order."""
    settings = TuneSettings.parse(
        {"batch_sizes": [16, 1, 4, 4], "draft_temperatures": [0.7, None, 0.7]}
    )

    assert settings.batch_sizes == (1, 4, 16)
    assert settings.draft_temperatures == (0.7, None)


def test_settings_survive_the_store() -> None:
    """What a run stores as JSON gives the same settings again."""
    settings = TuneSettings.parse(
        {"traffic": "a/b.jsonl", "drafters": {"small": "models/small"}, "layer_skip": [2]}
    )

    again = TuneSettings.parse(json.loads(json.dumps(settings.model_dump(mode="json"))))

    assert again == settings
    assert again.drafters == {"small": Path("models/small")}


def test_the_default_search_space_holds_small_ks() -> None:
    """B3: K = 1 to 3 are part of every search, and so are following and greedy drafts."""
    defaults = TuneSettings()

    assert defaults.max_num_speculative_tokens >= 3
    assert {None, 0.0} < set(defaults.draft_temperatures)
    assert defaults.batch_sizes == (1, 4, 16)


def test_settings_cannot_be_changed() -> None:
    """A run's settings are what it began with."""
    settings = TuneSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.trials = 3

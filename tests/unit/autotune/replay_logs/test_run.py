"""A replay as a whole: notes, groups, and what the report says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError, TrafficError
from autotune.progress import Silent
from autotune.replay_logs.run import replay_logs
from autotune.replay_logs.settings import ReplaySettings
from autotune.report.replayed import ReplayReport
from engine.errors import EngineError, VocabularyMismatchError
from tests.support.checkpoints import A11, H0, changed_copy, disturbed
from tests.support.server_log import write_log

AXES = ("task", "temperature", "position")
LOOP = [5, 6, 7, 8] * 6


def row(**values: Any) -> dict[str, Any]:
    """A sampled answer that repeats its prompt."""
    return {
        "prompt_token_ids": LOOP[:8],
        "token_ids": LOOP,
        "logprobs": [-1.0] * len(LOOP),
        "temperature": 1.0,
    } | values


def replayed(
    folder: Path,
    *rows: dict[str, Any] | str,
    axes: tuple[str, ...] = AXES,
    progress: Silent | None = None,
    **values: Any,
) -> ReplayReport:
    """A replay of a log with n-gram drafts, unless told otherwise."""
    log = write_log(folder / "log.jsonl", rows)
    settings = ReplaySettings(
        **(
            {"logs": log, "drafter": "ngram", "device": "cpu", "max_num_speculative_tokens": 3}
            | values
        )
    )
    return replay_logs(settings, axes, progress or Silent())


def test_a_loop_is_drafted_in_full(tmp_path: Path) -> None:
    """n-gram drafts of a periodic answer are always right: K + 1 tokens a round."""
    report = replayed(tmp_path, row(), row(), row())

    assert report.rules == ("delta",)
    assert report.source == "file:log.jsonl"
    assert report.num_answers == 3
    tokens = len(LOOP) - 1
    for size in report.sizes:
        k = size.counts.config.num_speculative_tokens
        assert size.counts.num_output_tokens == 3 * tokens
        assert size.counts.num_rounds == 3 * -(-tokens // (k + 1))
        assert size.std_error == pytest.approx(0, abs=1e-9)
    assert [size.counts.config.num_speculative_tokens for size in report.sizes] == [1, 2, 3]


def test_groups_follow_the_axes(tmp_path: Path) -> None:
    """Task and temperature tell answers apart where they are asked for."""
    rows = [
        row(metadata={"task": task}, temperature=temperature)
        for task in ("b", "a")
        for temperature in (1.0, 0.0)
    ]

    def groups(*axes: str) -> list[tuple[str | None, float | None, int]]:
        report = replayed(tmp_path, *rows, axes=axes)
        return [(g.task, g.temperature, g.num_requests) for g in report.of("delta", 3)]

    assert groups("task", "temperature") == [("a", 0, 1), ("a", 1, 1), ("b", 0, 1), ("b", 1, 1)]
    assert groups("task") == [("a", None, 2), ("b", None, 2)]
    assert groups("temperature") == [(None, 0, 2), (None, 1, 2)]
    assert groups("position") == [(None, None, 4)]


def test_groups_without_a_round_are_left_out(tmp_path: Path) -> None:
    """An answer of one token has nothing to tell."""
    short = row(token_ids=[1], logprobs=[-1.0], metadata={"task": "short"})

    report = replayed(tmp_path, row(), short)

    assert report.num_answers == 2
    assert [group.task for group in report.of("delta", 1)] == ["unlabelled"]


def test_ngram_asks_for_no_log_probabilities(tmp_path: Path) -> None:
    """Its drafts are certain, so raw or missing ones do no harm."""
    report = replayed(tmp_path, row(logprobs=None, top_p=0.5), row(temperature=0.3))

    assert report.num_answers == 2


def test_greedy_drafts_ask_for_none_either(tmp_path: Path) -> None:
    """A draft model at temperature 0 is deterministic; at any other it is not."""
    draft = changed_copy(tmp_path / "draft", disturbed)

    report = replayed(tmp_path, row(logprobs=None), drafter=str(draft), draft_temperature=0.0)

    assert report.rules == ("delta",)
    with pytest.raises(TrafficError, match="1 no log-probabilities"):
        replayed(tmp_path, row(logprobs=None), drafter=str(draft))


def test_both_rules_for_drafts_that_are_drawn(tmp_path: Path) -> None:
    """The block rule never needs more rounds."""
    draft = changed_copy(tmp_path / "draft", disturbed)

    report = replayed(tmp_path, row(), row(temperature=0.0), drafter=str(draft))

    assert report.rules == ("ratio", "block")
    ratio, block = (
        [size.counts.num_rounds for size in report.sizes if size.rule == rule]
        for rule in report.rules
    )
    assert all(b <= r * (1 + 1e-12) for r, b in zip(ratio, block, strict=True))
    assert len(report.groups) == 2 * 2 * 3


def test_notes(tmp_path: Path) -> None:
    """What was left out, what was assumed, what was not compared."""
    progress = Silent()
    draft = changed_copy(tmp_path / "draft", disturbed)

    replayed(tmp_path, "{oops", row(temperature=None), row(), drafter=str(draft), progress=progress)

    told = "\n".join(progress.notes)
    assert "lines skipped: 1 not JSON (the first is line 1)" in told
    assert "1 answers name no temperature, so it is taken to be 1" in told
    assert "--target compares it" in told


def test_a_whole_log_is_replayed_in_silence(tmp_path: Path) -> None:
    """Nothing is left out, assumed or skipped."""
    progress = Silent()

    replayed(tmp_path, row(), progress=progress, target=str(H0), drafter=str(H0))

    assert progress.notes == []


def test_refusals(tmp_path: Path) -> None:
    """One error each, before anything is computed."""
    with pytest.raises(TrafficError, match="does not exist"):
        replay_logs(ReplaySettings(logs=tmp_path / "none", drafter="ngram"), AXES, Silent())
    with pytest.raises(TrafficError, match="no answers in it"):
        replayed(tmp_path)
    with pytest.raises(ConfigError, match="hidden states"):
        replayed(tmp_path, row(), drafter="eagle3")
    with pytest.raises(ConfigError, match="--logprobs processed"):
        replayed(tmp_path, row(top_p=0.5), drafter=str(H0))
    with pytest.raises(ConfigError, match="holds text"):
        replayed(tmp_path, {"prompt": "a", "text": "b", "logprobs": [-1]})
    with pytest.raises(EngineError, match="name the target"):
        replayed(tmp_path, row(), drafter="pruned-1")
    with pytest.raises(VocabularyMismatchError):
        replayed(tmp_path, row(), drafter=str(A11 / "draft"), target=str(A11 / "target"))


def test_only_so_many_answers(tmp_path: Path) -> None:
    """From the start of the log."""
    report = replayed(tmp_path, row(), row(token_ids=[1, 2], logprobs=[-1, -1]), max_answers=1)

    assert report.num_answers == 1
    assert report.sizes[0].counts.num_output_tokens == len(LOOP) - 1


def test_json(tmp_path: Path) -> None:
    """Counts, ratios and intervals; an interval needs two answers."""
    report = replayed(tmp_path, row(), "{oops")

    found: Any = report.to_json()

    assert found["skipped"] == {"not JSON": 1}
    assert found["by"] == list(AXES)
    assert found["sizes"][0]["rule"] == "delta"
    assert found["sizes"][0]["tokens_per_round_interval"] is None
    assert found["groups"][0]["acceptance_per_pos"]
    two: Any = replayed(tmp_path, row(), row(token_ids=[9, 3, 1], logprobs=[-1] * 3)).to_json()
    low, high = two["sizes"][0]["tokens_per_round_interval"]
    assert 1.0 <= low < two["sizes"][0]["tokens_per_round"] < high

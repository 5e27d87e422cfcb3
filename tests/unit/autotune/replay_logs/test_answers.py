"""A whole log: what is asked about it, what is used of it, and what is left out by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError, TrafficError
from autotune.replay_logs.answers import (
    Log,
    read_log,
    require_known_log_probs,
    require_tokenizer,
    to_trajectories,
)
from autotune.replay_logs.settings import LogProbs
from engine.record import Trajectory
from engine.request import FinishReason
from engine.tokenizer import Tokenizer
from tests.support.checkpoints import H0
from tests.support.server_log import chat_line, write_log

ASKED = [{"role": "user", "content": "hi"}]


def row(**values: Any) -> dict[str, Any]:
    """A sampled answer of three tokens at temperature 1."""
    return {
        "prompt_token_ids": [1, 2],
        "token_ids": [3, 4, 5],
        "logprobs": [-0.5, -1.0, -2.0],
        "temperature": 1.0,
    } | values


def log_of(path: Path, *rows: dict[str, Any] | str, needs_log_probs: bool = True) -> Log:
    """A log in a file."""
    file = write_log(path / "log.jsonl", rows)
    return read_log(file, limit=100, needs_log_probs=needs_log_probs)


def used(
    log: Log,
    *,
    log_probs: LogProbs | None = None,
    tokenizer: Tokenizer | None = None,
    longest: int | None = None,
) -> tuple[Trajectory, ...]:
    """The usable answers."""
    return to_trajectories(log, tokenizer, log_probs=log_probs, max_drafts=8, longest=longest)


def test_an_answer_becomes_a_trajectory(tmp_path: Path) -> None:
    """Tokens, processed log-probabilities of all but the first, sampling and task."""
    line = row(temperature=0.7, top_p=0.9, top_k=30, max_tokens=5, metadata={"task": "code"})

    (found,) = used(log_of(tmp_path, line), log_probs="processed")

    assert found.request.prompt_tokens == (1, 2)
    assert found.output_tokens == (3, 4, 5)
    assert found.log_probs == (-1.0, -2.0)
    assert found.request.task == "code"
    params = found.request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.9, 30)
    assert params.max_tokens == 5


@pytest.mark.parametrize(
    ("values", "max_tokens", "finish"),
    [
        ({"max_tokens": 9, "finish_reason": "stop"}, 9, FinishReason.STOP),
        ({"max_tokens": 9, "finish_reason": "length"}, 9, FinishReason.LENGTH),
        ({"finish_reason": "length"}, 3, FinishReason.LENGTH),
        ({"finish_reason": "stop"}, 11, FinishReason.STOP),
        ({}, 11, FinishReason.STOP),
    ],
)
def test_an_unknown_limit_shortens_no_draft(
    tmp_path: Path, values: dict[str, Any], max_tokens: int, finish: FinishReason
) -> None:
    """Where the request names none, the answer's end tells whether there was one."""
    (found,) = used(log_of(tmp_path, row(**values)))

    assert (found.request.params.max_tokens, found.finish_reason) == (max_tokens, finish)


def test_greedy_answers_are_certain(tmp_path: Path) -> None:
    """Whatever was logged."""
    (found,) = used(log_of(tmp_path, row(temperature=0)))

    assert found.log_probs == (0.0, 0.0)


def test_raw_log_probabilities_serve_where_nothing_was_processed(tmp_path: Path) -> None:
    """Others are left out, since what they lack is in no log."""
    log = log_of(tmp_path, row(), row(temperature=0.7), row(temperature=0), row(top_k=5))

    found = used(log, log_probs="raw")

    assert [t.request.request_id for t in found] == ["line-1", "line-3"]
    assert log.skipped.counts == {"raw log-probabilities of a processed distribution": 2}


def test_what_the_log_probabilities_are_must_be_said(tmp_path: Path) -> None:
    """Only where it makes a difference, with the first line that it does."""
    log = log_of(tmp_path, row(), row(temperature=0), row(top_p=0.5))

    with pytest.raises(ConfigError, match=r"1 of 3 answers \(the first is line 3\)") as caught:
        require_known_log_probs(log, None)
    assert "--logprobs processed" in str(caught.value)
    assert "--logprobs raw" in str(caught.value)
    require_known_log_probs(log, "raw")
    require_known_log_probs(log_of(tmp_path, row(), row(temperature=0)), None)
    certain = log_of(tmp_path, row(top_p=0.5), needs_log_probs=False)
    require_known_log_probs(certain, None)
    assert len(used(certain)) == 1


def test_text_asks_for_the_target(tmp_path: Path) -> None:
    """With the first line that holds some."""
    log = log_of(tmp_path, row(), chat_line(ASKED, "yes"))

    with pytest.raises(ConfigError, match=r"line 2 of .* holds text"):
        require_tokenizer(log, None)
    require_tokenizer(log, "somewhere")
    require_tokenizer(log_of(tmp_path, row()), None)
    assert len(used(log, tokenizer=Tokenizer(H0))) == 2


def test_lines_that_cannot_be_used_are_counted_with_the_first(tmp_path: Path) -> None:
    """Malformed lines, foreign tokens, and texts beyond the draft."""
    log = log_of(
        tmp_path,
        "{oops",
        row(),
        "nonsense",
        row(token_ids=[3, 4, 999]),
        row(prompt_token_ids=list(range(1, 20))),
        chat_line(ASKED, "yes", tokens=["y", "e", "z", ""]),
    )

    found = used(log, tokenizer=Tokenizer(H0), longest=10)

    assert [t.request.request_id for t in found] == ["line-2"]
    assert log.skipped.describe() == (
        "1 longer than the draft's context (the first is line 5), "
        "2 not JSON (the first is line 1), "
        "1 text that the tokenizer splits otherwise than it was generated (the first is line 6), "
        "1 token outside the model's vocabulary (the first is line 4)"
    )


@pytest.mark.parametrize(("longest", "fits"), [(4, True), (3, False)])
def test_the_last_token_is_never_looked_back_on(tmp_path: Path, longest: int, fits: bool) -> None:
    """Two and three tokens need four positions."""
    log = log_of(tmp_path, row())
    if fits:
        assert len(used(log, longest=longest)) == 1
        return
    with pytest.raises(TrafficError, match="longer than the draft's context"):
        used(log, longest=longest)


def test_nothing_usable_is_one_line(tmp_path: Path) -> None:
    """With the counts and the remedy."""
    with pytest.raises(TrafficError) as caught:
        used(log_of(tmp_path, row(temperature=0.5)), log_probs="raw")
    assert "no usable answer (skipped: 1 raw log-probabilities" in str(caught.value)
    assert "return_token_ids" in str(caught.value)
    assert "no answers in it" in str(log_of(tmp_path).nothing_usable())
    cut = log_of(tmp_path, '{"prompt": "a')
    (tmp_path / "log.jsonl").write_text('{"prompt": "a')
    cut = read_log(tmp_path / "log.jsonl", limit=1, needs_log_probs=True)
    assert "cut short" in str(cut.nothing_usable())


def test_answers_without_rounds_are_no_use(tmp_path: Path) -> None:
    """The first token comes from prefill."""
    log = log_of(tmp_path, row(token_ids=[3], logprobs=[-1.0]))

    with pytest.raises(TrafficError, match="ends with its first token"):
        used(log)

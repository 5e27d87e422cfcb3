"""One line of a server's log: the shapes it may have, what is read of each, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.traffic.logged import LoggedAnswer, parse_answer
from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import Message
from tests.support.server_log import chat_line

SECRET = "the secret text"
ANSWER = {"token_ids": [5, 6], "logprobs": [-0.5, -1.0], "finish_reason": "stop"}


def flat(**values: Any) -> dict[str, Any]:
    """A line with everything in one object."""
    return {"prompt_token_ids": [1, 2, 3], "temperature": 1.0} | ANSWER | values


def completion(choice: dict[str, Any], **body: Any) -> dict[str, Any]:
    """A completions body and its response."""
    return {
        "request": {"prompt": [1, 2, 3], "temperature": 1.0} | body,
        "response": {"choices": [ANSWER | choice]},
    }


def parsed(row: object, **values: bool) -> LoggedAnswer:
    """The answer of line 7."""
    return parse_answer(row, 7, **values)


def reason(row: object, **values: bool) -> SkipReason:
    """Why a line is skipped."""
    with pytest.raises(Skipped) as caught:
        parsed(row, **values)
    return caught.value.reason


def test_a_flat_line() -> None:
    """Prompt, answer, log-probabilities and settings side by side."""
    answer = parsed(flat(top_p=0.9, top_k=20, max_tokens=9, metadata={"task": "code"}))

    assert answer.line == 7
    assert answer.prompt_token_ids == (1, 2, 3)
    assert answer.output_token_ids == (5, 6)
    assert answer.log_probs == (-0.5, -1.0)
    assert answer.finish_reason == "stop"
    assert (answer.settings.top_p, answer.settings.top_k) == (0.9, 20)
    assert (answer.settings.max_tokens, answer.settings.task) == (9, "code")
    assert not answer.needs_tokenizer


@pytest.mark.parametrize(
    "row",
    [
        completion({}),
        completion({}, prompt=[[1, 2, 3]]),
        completion({"prompt_token_ids": [1, 2, 3]}, prompt="text"),
        completion({"logprobs": {"token_logprobs": [-0.5, -1.0], "tokens": ["a", "b"]}}),
        completion({"logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"logprob": -1}]}}),
        completion(
            {
                "token_ids": None,
                "logprobs": {
                    "token_logprobs": [-0.5, -1.0],
                    "tokens": ["token_id:5", "token_id:6"],
                },
            }
        ),
        {
            "custom_id": "x",
            "url": "/v1/completions",
            "body": {"prompt": [1, 2, 3]},
            "response": {"status_code": 200, "body": {"choices": [ANSWER]}},
        },
        {
            "request": {"token_ids": 0, "sampling_params": {"temperature": 1.0}},
            "response": {"prompt_token_ids": [1, 2, 3], "choices": [ANSWER]},
        },
        {
            "request": {"body": {"messages": [{"role": "user", "content": "a"}]}},
            "response": {"prompt_token_ids": [1, 2, 3], "choices": [ANSWER]},
        },
        {"prompt": [1, 2, 3], "choices": [ANSWER], "logprobs": True},
    ],
)
def test_the_same_answer_in_other_words(row: dict[str, Any]) -> None:
    """Every documented place of ids and log-probabilities is found."""
    answer = parsed(row)

    assert answer.prompt_token_ids == (1, 2, 3)
    assert answer.output_token_ids == (5, 6)
    assert answer.log_probs == (-0.5, -1.0)
    assert answer.temperature == 1.0


def test_a_chat_answer_as_text() -> None:
    """Text and tokens are kept for the tokenizer."""
    answer = parsed(chat_line([{"role": "user", "content": "hi"}], "yes"))

    assert answer.prompt == (Message(role="user", content="hi"),)
    assert answer.prompt_token_ids is None
    assert answer.output_token_ids is None
    assert answer.output_text == "yes"
    assert answer.tokens == ("y", "e", "s", "")
    assert answer.log_probs == (-0.25,) * 4
    assert answer.needs_tokenizer


def test_greedy_answers_need_no_log_probabilities() -> None:
    """Theirs are not looked at, since their tokens are certain."""
    for value in (None, [-9999.0, "x"], [-1.0], True):
        answer = parsed(flat(temperature=0, logprobs=value))
        assert answer.is_greedy
        assert answer.log_probs is None


def test_deterministic_drafts_need_no_log_probabilities() -> None:
    """Nor do sampled answers, where the drafter asks for none."""
    assert reason(flat(logprobs=None)) is SkipReason.NO_LOG_PROBS
    assert parsed(flat(logprobs=None), needs_log_probs=False).log_probs is None


@pytest.mark.parametrize(
    ("values", "processed"),
    [
        ({"temperature": 0.0, "top_p": 0.5}, False),
        ({"temperature": 1.0}, False),
        ({"temperature": None}, False),
        ({"temperature": 1.0, "top_p": 1, "top_k": -1}, False),
        ({"temperature": 0.7}, True),
        ({"temperature": 1.0, "top_p": 0.99}, True),
        ({"temperature": 1.0, "top_k": 50}, True),
    ],
)
def test_what_changes_the_distribution(values: dict[str, Any], processed: bool) -> None:
    """Temperature, top-k and top-p, unless greedy."""
    assert parsed(flat(**values)).is_processed is processed


def test_a_rounding_above_zero_is_zero() -> None:
    """Certain tokens may come out slightly above."""
    assert parsed(flat(logprobs=[3e-6, -1])).log_probs == (0.0, -1.0)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([], SkipReason.NOT_OBJECT),
        ({"token_ids": [1], "logprobs": [-1]}, SkipReason.NO_REQUEST),
        ({"request": {"prompt": "x"}, "response": None}, SkipReason.NO_RESPONSE),
        ({"request": {"prompt": "x"}, "response": "text"}, SkipReason.NO_RESPONSE),
        ({"request": {"prompt": "x"}, "response": {"body": None}}, SkipReason.NO_RESPONSE),
        ({"request": {"prompt": "x"}, "response": {"choices": 1}}, SkipReason.NO_RESPONSE),
        ({"request": {"prompt": "x"}, "response": {"choices": []}}, SkipReason.NO_ANSWER),
        (
            {"request": {"prompt": "x"}, "response": {"choices": [{}, {}]}},
            SkipReason.SEVERAL_ANSWERS,
        ),
        ({"request": {"prompt": "x"}, "response": {"error": {"code": 1}}}, SkipReason.FAILED),
        ({"request": {"prompt": "x"}, "response": {"status_code": 500}}, SkipReason.FAILED),
        ({"body": {"prompt": "x"}, "url": "/v1/embeddings"}, SkipReason.OTHER_ENDPOINT),
        (flat(tools=[{"type": "function"}]), SkipReason.TOOLS),
        (flat(min_p=0.1), SkipReason.MIN_P),
        (flat(presence_penalty=1), SkipReason.PENALTIES),
        (flat(n=2), SkipReason.SEVERAL_ANSWERS),
        (flat(temperature=-1), SkipReason.BAD_VALUE),
        (flat(prompt_token_ids=[]), SkipReason.BAD_TOKENS),
        (flat(prompt_token_ids="1 2"), SkipReason.BAD_TOKENS),
        (flat(token_ids=[True, 1]), SkipReason.BAD_TOKENS),
        (flat(token_ids=[-1, 1]), SkipReason.BAD_TOKENS),
        (flat(token_ids=[1.0, 1]), SkipReason.BAD_TOKENS),
        (flat(max_tokens=1), SkipReason.TOO_MANY_TOKENS),
        (flat(logprobs=True), SkipReason.NO_LOG_PROBS),
        (flat(logprobs={"content": None}), SkipReason.NO_LOG_PROBS),
        (flat(logprobs=[-1.0]), SkipReason.OTHER_COUNT),
        (flat(logprobs=[None, -1.0]), SkipReason.BAD_LOG_PROBS),
        (flat(logprobs=[-9999.0, -1.0]), SkipReason.BAD_LOG_PROBS),
        (flat(logprobs=[float("nan"), -1.0]), SkipReason.BAD_LOG_PROBS),
        (flat(logprobs=[0.5, -1.0]), SkipReason.BAD_LOG_PROBS),
        (flat(token_ids=None), SkipReason.NO_ANSWER),
        (flat(token_ids=None, message={"tool_calls": [1]}), SkipReason.TOOLS),
        (
            flat(token_ids=None, message={"content": "x", "reasoning_content": "y"}),
            SkipReason.REASONING,
        ),
        (flat(token_ids=None, message={"content": "\ud800"}), SkipReason.BAD_UNICODE),
    ],
)
def test_what_cannot_be_replayed_says_why(row: object, why: SkipReason) -> None:
    """Each line is refused by name."""
    assert reason(row) is why


def test_nothing_of_the_text_is_shown() -> None:
    """A representation may end up in a log."""
    row = chat_line([{"role": "user", "content": SECRET}], SECRET)
    assert SECRET in json.dumps(row)
    assert SECRET not in repr(parsed(row))

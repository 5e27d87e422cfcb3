"""One decoded line: fields, defaults, limits, and the features that our engine does not replay."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.traffic.bodies import parse_request
from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import Message, SampledRequest


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello."}], **fields}


def _parse(row: object) -> SampledRequest:
    return parse_request(row, "line-1")


def _reason(row: object) -> SkipReason:
    with pytest.raises(Skipped) as caught:
        _parse(row)
    return caught.value.reason


def test_defaults_of_a_bare_body() -> None:
    """A body with nothing but messages gets the documented defaults."""
    assert _parse(_chat()) == SampledRequest(
        request_id="line-1",
        messages=(Message(role="user", content="Hello."),),
        task="unlabelled",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_tokens=128,
        stop=(),
        seed=None,
    )


def test_all_fields_are_read() -> None:
    """Every field that decides the answer arrives."""
    request = _parse(
        {
            "prompt": ["Once"],
            "temperature": 0,
            "top_p": 0.9,
            "top_k": 40,
            "max_tokens": 7,
            "stop": ["\n", ""],
            "seed": 11,
            "metadata": {"task": "open", "customer": "somebody"},
        }
    )
    assert request == SampledRequest(
        request_id="line-1",
        prompt="Once",
        task="open",
        temperature=0.0,
        top_p=0.9,
        top_k=40,
        max_tokens=7,
        stop=("\n",),
        seed=11,
    )


def test_newer_length_limit_wins() -> None:
    """`max_completion_tokens` replaced `max_tokens` in the API."""
    assert _parse(_chat(max_tokens=5, max_completion_tokens=9)).max_tokens == 9


@pytest.mark.parametrize("value", [0, -1, None])
def test_top_k_off(value: int | None) -> None:
    """Both spellings of "off", and none at all, mean 0."""
    assert _parse(_chat(top_k=value)).top_k == 0


@pytest.mark.parametrize("task", ["two words", "", "x" * 41, 3, None, "naïve"])
def test_task_must_be_a_plain_label(task: object) -> None:
    """Labels are published, so anything but a short plain one is dropped."""
    assert _parse(_chat(metadata={"task": task})).task == "unlabelled"


def test_answer_at_the_end_is_cut_off() -> None:
    """A log that holds the answer as a last turn gives the request before it."""
    request = _parse(
        {
            "messages": [
                {"role": "user", "content": "One"},
                {"role": "assistant", "content": "Two"},
                {"role": "user", "content": "Three"},
                {"role": "assistant", "content": "Four"},
            ]
        }
    )
    assert [message.content for message in request.messages] == ["One", "Two", "Three"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2}, SkipReason.SEVERAL_ANSWERS),
        ({"best_of": 3}, SkipReason.SEVERAL_ANSWERS),
        ({"tools": [{"type": "function"}]}, SkipReason.TOOLS),
        ({"response_format": {"type": "json_object"}}, SkipReason.RESPONSE_FORMAT),
        ({"guided_regex": "[ab]+"}, SkipReason.RESPONSE_FORMAT),
        ({"logit_bias": {"50": -100}}, SkipReason.LOGIT_BIAS),
        ({"min_p": 0.05}, SkipReason.MIN_P),
        ({"presence_penalty": 0.1}, SkipReason.PENALTIES),
        ({"frequency_penalty": -0.5}, SkipReason.PENALTIES),
        ({"repetition_penalty": 1.1}, SkipReason.PENALTIES),
        ({"modalities": ["text", "audio"]}, SkipReason.AUDIO),
        ({"suffix": "end"}, SkipReason.SUFFIX),
        ({"echo": True}, SkipReason.ECHO),
        ({"continue_final_message": True}, SkipReason.CONTINUED_ANSWER),
    ],
)
def test_unsupported_features_are_named(fields: dict[str, Any], reason: SkipReason) -> None:
    """What our engine would answer differently is skipped under its own name."""
    assert _reason(_chat(**fields)) is reason


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": None},
        {"tools": [], "logit_bias": {}, "min_p": 0},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
    ],
)
def test_features_switched_off_do_not_count(fields: dict[str, Any]) -> None:
    """A feature that is present in the body and off changes nothing."""
    assert _parse(_chat(**fields)) == _parse(_chat())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": 10.5},
        {"temperature": float("nan")},
        {"temperature": "0.7"},
        {"temperature": True},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": -2},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": "16"},
        {"seed": 2**63},
    ],
)
def test_values_out_of_range_are_skipped(fields: dict[str, Any]) -> None:
    """A server would have refused these, so they are no traffic."""
    assert _reason(_chat(**fields)) is SkipReason.BAD_VALUE


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], SkipReason.NOT_OBJECT),
        ({"input": "x"}, SkipReason.NO_REQUEST),
        ({"body": None}, SkipReason.NO_REQUEST),
        ({"body": _chat(), "url": 5}, SkipReason.OTHER_ENDPOINT),
        ({"prompt": [1, 2, 3]}, SkipReason.TOKEN_IDS),
        ({"prompt": ["a", "b"]}, SkipReason.SEVERAL_PROMPTS),
        ({"prompt": "  "}, SkipReason.NO_USER_TEXT),
        ({"messages": "hello"}, SkipReason.BAD_MESSAGE),
        ({"messages": ["hello"]}, SkipReason.BAD_MESSAGE),
        ({"messages": [{"content": "x"}]}, SkipReason.BAD_MESSAGE),
        ({"messages": [{"role": "wizard", "content": "x"}]}, SkipReason.UNKNOWN_ROLE),
        ({"messages": [{"role": "tool", "content": "x"}]}, SkipReason.TOOLS),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, SkipReason.TEXT_NOT_STRING),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, SkipReason.BAD_UNICODE),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, SkipReason.OTHER_PART),
        ({"messages": [{"role": "user", "content": [7]}]}, SkipReason.BAD_MESSAGE),
        ({"messages": [{"role": "assistant", "content": "x"}]}, SkipReason.NO_USER_TEXT),
        ({"conversations": {"from": "human"}}, SkipReason.BAD_MESSAGE),
        (_chat(stop=[3]), SkipReason.TEXT_NOT_STRING),
    ],
)
def test_malformed_rows_are_named(row: object, reason: SkipReason) -> None:
    """Each kind of nonsense has its own reason and never ends the reading."""
    assert _reason(row) is reason

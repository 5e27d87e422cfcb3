"""Text of a log split into the tokens it was generated as, or refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.replay_logs.tokens import token_ids
from autotune.traffic.logged import parse_answer
from autotune.traffic.reasons import Skipped, SkipReason
from engine.errors import TokenizerError
from engine.tokenizer import Tokenizer
from tests.support.checkpoints import H0
from tests.support.server_log import chat_line

TOKENIZER = Tokenizer(H0)  # one token per byte
EOS = 258
ASKED = [{"role": "user", "content": "hi"}]


def output_of(row: dict[str, Any], *, needs_log_probs: bool = True) -> tuple[int, ...]:
    """Ids of an answer."""
    answer = parse_answer(row, 1, needs_log_probs=needs_log_probs)
    return token_ids(answer, TOKENIZER).output


def reason(row: dict[str, Any]) -> SkipReason:
    """Why an answer is refused."""
    with pytest.raises(Skipped) as caught:
        output_of(row)
    return caught.value.reason


def text(value: str, **values: Any) -> dict[str, Any]:
    """A completion of text."""
    choice = {"text": value, "finish_reason": "stop"} | values
    return {"request": {"prompt": "ab", "temperature": 1}, "response": {"choices": [choice]}}


def test_ids_are_taken_as_they_are() -> None:
    """No tokenizer is needed where all is ids."""
    row = {"prompt_token_ids": [9, 8], "token_ids": [7], "logprobs": [-1]}

    found = token_ids(parse_answer(row, 1), None)

    assert (found.prompt, found.output) == ((9, 8), (7,))


def test_a_conversation_is_rendered_as_the_template_has_it() -> None:
    """The prompt is what the server fed to the model."""
    found = token_ids(parse_answer(chat_line(ASKED, "yes"), 1), TOKENIZER)

    turns = TOKENIZER.render_chat(ASKED)
    assert found.prompt == tuple(TOKENIZER.encode(turns))
    assert found.output == (*b"yes", EOS)


def test_a_bare_prompt_gets_what_the_tokenizer_puts_around_it() -> None:
    """As the server does for a completion."""
    row = text("x", logprobs=[-1, -1])

    found = token_ids(parse_answer(row, 1), TOKENIZER)

    assert found.prompt == tuple(TOKENIZER.encode("ab", add_special_tokens=True))


def test_the_end_token_that_text_leaves_out_is_put_back() -> None:
    """Where there is one log-probability more than text, or the answer ended by itself."""
    assert output_of(text("xy", logprobs=[-1, -1, -1])) == (*b"xy", EOS)
    assert output_of(text("xy", logprobs=[-1, -1])) == tuple(b"xy")
    cut = text("xy", logprobs=[-1, -1], finish_reason="length")
    assert output_of(cut) == tuple(b"xy")
    assert output_of(text("xy"), needs_log_probs=False) == (*b"xy", EOS)
    stopped = text("xy")
    stopped["request"]["stop"] = ["y"]
    assert output_of(stopped, needs_log_probs=False) == tuple(b"xy")


def test_text_that_is_split_otherwise_is_refused() -> None:
    """Another number of tokens, or other tokens."""
    assert reason(text("xyz", logprobs=[-1, -1])) is SkipReason.OTHER_SPLIT
    assert reason(text("x", logprobs=[-1] * 3)) is SkipReason.OTHER_SPLIT
    cut = text("xy", logprobs=[-1] * 3, finish_reason="length")
    assert reason(cut) is SkipReason.OTHER_SPLIT
    other = chat_line(ASKED, "yes", tokens=["y", "e", "z", ""])
    assert reason(other) is SkipReason.OTHER_SPLIT


def test_parts_of_a_character_cannot_be_compared() -> None:
    """A byte of a longer character has no text of its own."""
    row = chat_line(ASKED, "é", tokens=["\\xc3", "\\xa9", ""], log_probs=[-1.0] * 3)

    assert output_of(row) == (*"é".encode(), EOS)


def test_what_the_template_refuses_is_not_quoted(tmp_path: Path) -> None:
    """A refusal is a reason; a broken template is an error."""
    folder = tmp_path / "model"
    shutil.copytree(H0, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ raise_exception(messages[0].content) }}")
    answer = parse_answer(chat_line(ASKED, "yes"), 1)

    with pytest.raises(Skipped) as caught:
        token_ids(answer, Tokenizer(folder))
    assert caught.value.reason is SkipReason.TEMPLATE

    template.write_text("{% if %}")
    with pytest.raises(TokenizerError):
        token_ids(answer, Tokenizer(folder))


def test_an_empty_rendering_is_refused(tmp_path: Path) -> None:
    """There is no position to start from."""
    folder = tmp_path / "model"
    shutil.copytree(H0, folder)
    (folder / "chat_template.jinja").write_text("{# nothing #}")

    with pytest.raises(Skipped) as caught:
        token_ids(parse_answer(chat_line(ASKED, "yes"), 1), Tokenizer(folder))
    assert caught.value.reason is SkipReason.NO_USER_TEXT

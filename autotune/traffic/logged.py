"""One decoded line of a server's log to one answer: the request, and what was said to it.

A line holds both: `{"request": BODY, "response": RESPONSE}`, where either may be a batch envelope;
or one flat object with the keys of both. Responses are those of OpenAI-style servers, with the
token ids that vLLM adds on `"return_token_ids": true`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.traffic.bodies import Body, Settings, read_prompt, read_settings, unwrap
from autotune.traffic.conversation import checked_text
from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import DEFAULT_TEMPERATURE, Message

_TOKEN_AS_ID = re.compile(r"token_id:(\d+)")
_ABOVE = 1e-4  # a log-probability of 0 may come out slightly above
_BELOW = -1000.0  # what servers write for minus infinity is far below, and cannot have been sampled
_MAX_TOKEN = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAnswer:
    """One answer of a server.

    Attributes:
        line: Its line in the log, from 1.
        settings: How the request wanted it.
        prompt_token_ids: The prompt as the server saw it, or None.
        prompt: The prompt as text or conversation, or None where only its ids are known.
        output_token_ids: The answer's tokens, the end token included, or None.
        output_text: The answer as text, where its ids are not known.
        tokens: The answer's tokens as they were logged beside their log-probabilities, or none.
        log_probs: Of each output token, at most 0; None where none are needed, as for a greedy
            answer.
        finish_reason: Why it ended, in the server's words; None where it does not say.
    """

    line: int
    settings: Settings
    prompt_token_ids: tuple[int, ...] | None
    prompt: str | tuple[Message, ...] | None
    output_token_ids: tuple[int, ...] | None
    output_text: str
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: str | None

    def __repr__(self) -> str:
        """Where it is, without any text of it."""
        return f"LoggedAnswer(line={self.line})"

    @property
    def temperature(self) -> float:
        """What the body says, or what servers use where it says nothing."""
        named = self.settings.temperature
        return DEFAULT_TEMPERATURE if named is None else named

    @property
    def needs_tokenizer(self) -> bool:
        """Some of it is text."""
        return self.prompt_token_ids is None or self.output_token_ids is None

    @property
    def is_greedy(self) -> bool:
        """Then its tokens are certain after processing, whatever log-probability was logged."""
        return self.temperature == 0.0

    @property
    def is_processed(self) -> bool:
        """The distribution it was drawn from is not the model's own."""
        settings = self.settings
        off = self.temperature == 1.0 and settings.top_p == 1.0 and settings.top_k == 0
        return not (self.is_greedy or off)


def parse_answer(row: object, line: int, *, needs_log_probs: bool = True) -> LoggedAnswer:
    """Reads a line of a log.

    Args:
        row: The decoded JSON value.
        line: Its number.
        needs_log_probs: Skip an answer that was sampled and has no usable log-probabilities;
            where they are not needed they are not looked at.

    Raises:
        Skipped: The line holds no answer that can be replayed, with the reason.
    """
    if not isinstance(row, dict):
        raise Skipped(SkipReason.NOT_OBJECT)
    body, response = _request_of(row), _response_of(row)
    choice = _choice_of(response)
    settings = read_settings(body)
    prompt_token_ids = _prompt_ids(body, response, choice)
    prompt = None
    if prompt_token_ids is None or "messages" in body:
        prompt = read_prompt(body)
    numbers, tokens = _beside(choice.get("logprobs"))
    needed = needs_log_probs and settings.temperature != 0.0
    if needed and numbers is None:
        raise Skipped(SkipReason.NO_LOG_PROBS)
    output_token_ids = _output_ids(response, choice, tokens)
    answer = LoggedAnswer(
        line=line,
        settings=settings,
        prompt_token_ids=prompt_token_ids,
        prompt=prompt,
        output_token_ids=output_token_ids,
        output_text="" if output_token_ids is not None else _text(choice),
        tokens=tokens,
        log_probs=tuple(map(_log_prob, numbers)) if needed and numbers is not None else None,
        finish_reason=str(reason) if (reason := choice.get("finish_reason")) else None,
    )
    ids, limit = answer.output_token_ids, settings.max_tokens
    if ids is not None and limit is not None and len(ids) > limit:
        raise Skipped(SkipReason.TOO_MANY_TOKENS)
    if ids is not None and answer.log_probs is not None and len(ids) != len(answer.log_probs):
        raise Skipped(SkipReason.OTHER_COUNT)
    return answer


def _request_of(row: Body) -> Body:
    request = row.get("request")
    if isinstance(request, dict):
        body = unwrap(request) if "body" in request else request
    else:
        body = unwrap(row) if "body" in row else row
    nested = body.get("sampling_params")
    return body | nested if isinstance(nested, dict) else body


def _response_of(row: Body) -> Body:
    response = row.get("response", row)
    if not isinstance(response, dict):
        raise Skipped(SkipReason.NO_RESPONSE)
    status = response.get("status_code")
    if response.get("error") or (isinstance(status, int) and status >= 400):
        raise Skipped(SkipReason.FAILED)
    inner = response.get("body")
    if "response" not in row or "body" not in response:
        return response
    if not isinstance(inner, dict):
        raise Skipped(SkipReason.NO_RESPONSE)
    return inner


def _choice_of(response: Body) -> Body:
    """The one answer of a response; a flat response is its own."""
    if "choices" not in response:
        return response
    choices = response["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise Skipped(SkipReason.NO_RESPONSE)
    if len(choices) > 1:
        raise Skipped(SkipReason.SEVERAL_ANSWERS)
    if not choices:
        raise Skipped(SkipReason.NO_ANSWER)
    choice: Body = choices[0]
    return choice


def _prompt_ids(body: Body, response: Body, choice: Body) -> tuple[int, ...] | None:
    for place in (choice, response, body):
        if place.get("prompt_token_ids") is not None:
            return _ids(place["prompt_token_ids"])
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if isinstance(prompt, list) and any(isinstance(item, int) for item in prompt):
        return _ids(prompt)
    return None


def _output_ids(response: Body, choice: Body, tokens: tuple[str, ...]) -> tuple[int, ...] | None:
    for value in (
        choice.get("token_ids"),
        choice.get("output_token_ids"),
        response.get("output_token_ids"),
    ):
        if value is not None:
            return _ids(value)
    found = [_TOKEN_AS_ID.fullmatch(token) for token in tokens]
    if found and all(found):
        return tuple(int(match[1]) for match in found if match is not None)
    return None


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise Skipped(SkipReason.BAD_TOKENS)
    for token in value:
        # JSON's true is an int to Python.
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < _MAX_TOKEN:
            raise Skipped(SkipReason.BAD_TOKENS)
    return tuple(value)


def _text(choice: Body) -> str:
    message = choice.get("message")
    text = choice.get("text")
    if isinstance(message, dict):
        if message.get("tool_calls") or message.get("function_call"):
            raise Skipped(SkipReason.TOOLS)
        if message.get("reasoning_content") or message.get("reasoning"):
            raise Skipped(SkipReason.REASONING)
        text = message.get("content")
    if not text:
        raise Skipped(SkipReason.NO_ANSWER)
    return checked_text(text)


def _beside(value: object) -> tuple[list[object] | None, tuple[str, ...]]:
    """The log-probabilities of a choice, unchecked, and the tokens beside them if there are any."""
    numbers: object = value
    tokens: object = None
    if isinstance(value, dict):
        content = value.get("content")
        if isinstance(content, list):
            return _beside(content)
        numbers, tokens = value.get("token_logprobs"), value.get("tokens")
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        numbers = [entry.get("logprob") for entry in value]
        tokens = [entry.get("token") for entry in value]
    if not isinstance(numbers, list):  # such as the request's own `"logprobs": true`
        return None, ()
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        tokens = ()
    return numbers, tuple(tokens)


def _log_prob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Skipped(SkipReason.BAD_LOG_PROBS)
    if not _BELOW < value <= _ABOVE:  # NaN fails this too
        raise Skipped(SkipReason.BAD_LOG_PROBS)
    return min(float(value), 0.0)

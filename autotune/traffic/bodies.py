"""One decoded line of a traffic file to one sampled request."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from autotune.traffic.conversation import chat_messages, checked_text, sharegpt_messages
from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_TEMPERATURE,
    MAX_TEMPERATURE,
    UNLABELLED,
    Message,
    SampledRequest,
)

_ENDPOINTS = ("/chat/completions", "/completions")
_MAX_SEED = 2**63 - 1
# A task ends up in tables and published documents, so only short plain labels are taken.
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")

Body = dict[str, object]


class Settings(NamedTuple):
    """How a request wants its answer, under the names of `SampledRequest`; None is not said."""

    task: str
    temperature: float | None
    top_p: float
    top_k: int
    max_tokens: int | None
    stop: tuple[str, ...]
    seed: int | None


def parse_request(row: object, request_id: str) -> SampledRequest:
    """Reads a chat or completions body, a batch envelope around one, or a ShareGPT row.

    Args:
        row: The decoded JSON value of one line.
        request_id: Id to give the request.

    Raises:
        Skipped: The line holds no request that can be replayed, with the reason.
    """
    if not isinstance(row, dict):
        raise Skipped(SkipReason.NOT_OBJECT)
    body = unwrap(row) if "body" in row else row
    prompt = read_prompt(body)
    settings = read_settings(body)
    temperature = settings.temperature
    return SampledRequest(
        request_id=request_id,
        messages=() if isinstance(prompt, str) else prompt,
        prompt=prompt if isinstance(prompt, str) else None,
        task=settings.task,
        temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_tokens=settings.max_tokens or DEFAULT_MAX_TOKENS,
        stop=settings.stop,
        seed=settings.seed,
    )


def unwrap(envelope: Body) -> Body:
    """The body inside a batch envelope.

    Raises:
        Skipped: It is for another endpoint, or there is none.
    """
    url = envelope.get("url")
    if url is not None and not (isinstance(url, str) and url.rstrip("/").endswith(_ENDPOINTS)):
        raise Skipped(SkipReason.OTHER_ENDPOINT)
    body = envelope["body"]
    if not isinstance(body, dict):
        raise Skipped(SkipReason.NO_REQUEST)
    return body


def read_prompt(body: Body) -> str | tuple[Message, ...]:
    """What a body asks: a text to continue, or a conversation.

    Raises:
        Skipped: It asks nothing that can be replayed as text.
    """
    if "messages" in body:
        return chat_messages(body["messages"])
    if "prompt" in body:
        return _prompt(body["prompt"])
    if "conversations" in body:
        return sharegpt_messages(body["conversations"])
    raise Skipped(SkipReason.NO_REQUEST)


def read_settings(body: Body) -> Settings:
    """How a body wants its answer.

    Raises:
        Skipped: In a way that our engine does not know, or with a value out of range.
    """
    for reason, present in _UNSUPPORTED:
        if present(body):
            raise Skipped(reason)
    return Settings(
        task=_task(body.get("metadata")),
        temperature=_real(body, "temperature", 0.0, MAX_TEMPERATURE),
        top_p=_top_p(body),
        top_k=_top_k(body),
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
        seed=_seed(body),
    )


def _prompt(value: object) -> str:
    if isinstance(value, list):
        if any(isinstance(item, int | list) for item in value):
            raise Skipped(SkipReason.TOKEN_IDS)
        if len(value) > 1:
            raise Skipped(SkipReason.SEVERAL_PROMPTS)
        value = value[0] if value else ""
    text = checked_text(value)
    if not text.strip():
        raise Skipped(SkipReason.NO_USER_TEXT)
    return text


def _task(metadata: object) -> str:
    label = metadata.get("task") if isinstance(metadata, dict) else None
    return label if isinstance(label, str) and _TASK.fullmatch(label) else UNLABELLED


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in map(checked_text, texts) if text)


def _real(body: Body, key: str, low: float, high: float) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Skipped(SkipReason.BAD_VALUE)
    if not low <= value <= high:  # NaN fails this too
        raise Skipped(SkipReason.BAD_VALUE)
    return float(value)


def _whole(body: Body, key: str, low: int, high: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Skipped(SkipReason.BAD_VALUE)
    return value


def _top_p(body: Body) -> float:
    top_p = _real(body, "top_p", 0.0, 1.0)
    if top_p == 0.0:
        raise Skipped(SkipReason.BAD_VALUE)
    return 1.0 if top_p is None else top_p


def _top_k(body: Body) -> int:
    # Servers take both 0 and -1 for "off".
    return max(0, _whole(body, "top_k", -1, _MAX_SEED) or 0)


def _max_tokens(body: Body) -> int | None:
    newer = _whole(body, "max_completion_tokens", 1, _MAX_SEED)
    return newer or _whole(body, "max_tokens", 1, _MAX_SEED)


def _seed(body: Body) -> int | None:
    return _whole(body, "seed", -_MAX_SEED - 1, _MAX_SEED)


def _set(*keys: str) -> Callable[[Body], bool]:
    """True where one of the keys holds anything but null, false, zero or an empty value."""
    return lambda body: any(body.get(key) for key in keys)


def _above_one(*keys: str) -> Callable[[Body], bool]:
    return lambda body: any(body.get(key) not in (None, 1) for key in keys)


def _structured(body: Body) -> bool:
    wanted = body.get("response_format")
    if isinstance(wanted, dict):
        return wanted.get("type") != "text"
    return bool(wanted)


def _penalised(body: Body) -> bool:
    return _set("presence_penalty", "frequency_penalty")(body) or (
        body.get("repetition_penalty") not in (None, 1, 1.0)
    )


def _speaks(body: Body) -> bool:
    modalities = body.get("modalities")
    return bool(body.get("audio")) or (isinstance(modalities, list) and "audio" in modalities)


# What our engine does not do, so that measuring it would measure another request.
_UNSUPPORTED: tuple[tuple[SkipReason, Callable[[Body], bool]], ...] = (
    (SkipReason.TOOLS, _set("tools", "functions")),
    (SkipReason.AUDIO, _speaks),
    (SkipReason.SEVERAL_ANSWERS, _above_one("n", "best_of")),
    (SkipReason.RESPONSE_FORMAT, _structured),
    (
        SkipReason.RESPONSE_FORMAT,
        _set(
            "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"
        ),
    ),
    (SkipReason.LOGIT_BIAS, _set("logit_bias")),
    (SkipReason.MIN_P, _set("min_p")),
    (SkipReason.PENALTIES, _penalised),
    (SkipReason.SUFFIX, _set("suffix")),
    (SkipReason.ECHO, _set("echo")),
    (SkipReason.CONTINUED_ANSWER, _set("continue_final_message")),
)

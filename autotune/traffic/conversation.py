"""Messages of chat bodies and of ShareGPT rows, brought into one shape."""

from __future__ import annotations

from autotune.traffic.reasons import Skipped, SkipReason
from autotune.traffic.records import Message

_CHAT_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "assistant": "assistant",
}
_TOOL_ROLES = frozenset({"tool", "function", "function_call", "observation"})


def checked_text(value: object) -> str:
    """The value as text that can be written as UTF-8.

    Raises:
        Skipped: It is no string, or holds half of a surrogate pair, which no tokenizer takes.
    """
    if not isinstance(value, str):
        raise Skipped(SkipReason.TEXT_NOT_STRING)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Skipped(SkipReason.BAD_UNICODE) from None
    return value


def chat_messages(rows: object) -> tuple[Message, ...]:
    """Messages of an OpenAI-style chat body, up to the last turn that is not the assistant's.

    Raises:
        Skipped: The conversation cannot be replayed as text.
    """
    if not isinstance(rows, list):
        raise Skipped(SkipReason.BAD_MESSAGE)
    return _conversation([_chat_message(row) for row in rows])


def sharegpt_messages(rows: object) -> tuple[Message, ...]:
    """Messages of a ShareGPT row, up to the last turn that is not the assistant's.

    Stray entries that are no objects occur in the public files and are passed over.

    Raises:
        Skipped: The conversation cannot be replayed as text.
    """
    if not isinstance(rows, list):
        raise Skipped(SkipReason.BAD_MESSAGE)
    return _conversation([_sharegpt_message(row) for row in rows if isinstance(row, dict)])


def _conversation(messages: list[Message]) -> tuple[Message, ...]:
    if not messages:
        raise Skipped(SkipReason.EMPTY_CONVERSATION)
    # Logs and fine-tuning files hold the answer as a last turn; the request ended before it.
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not any(message.role == "user" and message.content.strip() for message in messages):
        raise Skipped(SkipReason.NO_USER_TEXT)
    return tuple(messages)


def _chat_message(row: object) -> Message:
    if not isinstance(row, dict):
        raise Skipped(SkipReason.BAD_MESSAGE)
    if row.get("tool_calls") or row.get("function_call"):
        raise Skipped(SkipReason.TOOLS)
    role = _role(row.get("role"), _CHAT_ROLES)
    return Message(role=role, content=_content(row.get("content")))


def _sharegpt_message(row: dict[str, object]) -> Message:
    return Message(
        role=_role(row.get("from"), _SHAREGPT_ROLES), content=checked_text(row.get("value"))
    )


def _role(name: object, known: dict[str, str]) -> str:
    if not isinstance(name, str):
        raise Skipped(SkipReason.BAD_MESSAGE)
    if name in _TOOL_ROLES:
        raise Skipped(SkipReason.TOOLS)
    if name not in known:
        raise Skipped(SkipReason.UNKNOWN_ROLE)
    return known[name]


def _content(value: object) -> str:
    if value is None:
        # The turn stays, empty: templates that want alternating roles would fail without it.
        return ""
    if isinstance(value, list):
        return "\n".join(_part_text(part) for part in value)
    return checked_text(value)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return checked_text(part)
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise Skipped(SkipReason.BAD_MESSAGE)
    if kind == "text":
        return checked_text(part.get("text"))
    if "image" in kind:
        raise Skipped(SkipReason.IMAGE)
    if "audio" in kind:
        raise Skipped(SkipReason.AUDIO)
    raise Skipped(SkipReason.OTHER_PART)

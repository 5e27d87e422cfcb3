"""Why a line was skipped: fixed words, so that no text of a request reaches a log or a count."""

from __future__ import annotations

from enum import StrEnum


class SkipReason(StrEnum):
    """The reasons, as they appear in counts and messages."""

    TOO_LONG = "line too long"
    NOT_UTF8 = "not UTF-8"
    NOT_JSON = "not JSON"
    NOT_OBJECT = "not a JSON object"
    NO_REQUEST = "no messages, prompt or conversations"
    OTHER_ENDPOINT = "other endpoint"
    EMPTY_CONVERSATION = "empty conversation"
    NO_USER_TEXT = "no user text"
    BAD_MESSAGE = "malformed message"
    UNKNOWN_ROLE = "unknown role"
    TEXT_NOT_STRING = "text is not a string"
    BAD_UNICODE = "text is not valid Unicode"
    BAD_VALUE = "sampling value out of range"
    TOOLS = "tools"
    IMAGE = "image"
    AUDIO = "audio"
    OTHER_PART = "other content part"
    SEVERAL_PROMPTS = "several prompts"
    TOKEN_IDS = "prompt as token ids"
    SEVERAL_ANSWERS = "n > 1"
    RESPONSE_FORMAT = "response_format"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    PENALTIES = "penalties"
    SUFFIX = "suffix"
    ECHO = "echo"
    CONTINUED_ANSWER = "continued answer"


class Skipped(Exception):
    """Ends the reading of one line, inside this package. Carries the reason, nothing else."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason.value)
        self.reason = reason

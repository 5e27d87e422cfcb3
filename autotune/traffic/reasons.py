"""Why a line was skipped: fixed words, so that no text of a request reaches a log or a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    NO_RESPONSE = "no response"
    FAILED = "failed request"
    NO_ANSWER = "no output tokens or text"
    REASONING = "reasoning without token ids"
    BAD_TOKENS = "malformed token ids"
    TOO_MANY_TOKENS = "more output tokens than max_tokens"
    NO_LOG_PROBS = "no log-probabilities"
    BAD_LOG_PROBS = "malformed log-probabilities"
    OTHER_COUNT = "not one log-probability per output token"
    RAW_LOG_PROBS = "raw log-probabilities of a processed distribution"
    TEMPLATE = "refused by the chat template"
    OTHER_SPLIT = "text that the tokenizer splits otherwise than it was generated"
    VOCABULARY = "token outside the model's vocabulary"
    BEYOND_DRAFT = "longer than the draft's context"


class Skipped(Exception):
    """Ends the reading of one line, inside this package. Carries the reason, nothing else."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class SkipCounts:
    """How many lines were not used, and where the first of each reason is."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[str] = Counter()
        self._first_lines: dict[str, int] = {}

    def add(self, reason: SkipReason, line: int) -> None:
        """Count a line."""
        self._counts[reason.value] += 1
        self._first_lines.setdefault(reason.value, line)

    @property
    def counts(self) -> Mapping[str, int]:
        """Lines by reason, reasons in alphabetical order."""
        return dict(sorted(self._counts.items()))

    def describe(self) -> str:
        """For people, such as `2 not JSON (the first is line 7)`; empty where there are none."""
        return ", ".join(
            f"{count} {reason} (the first is line {self._first_lines[reason]})"
            for reason, count in self.counts.items()
        )

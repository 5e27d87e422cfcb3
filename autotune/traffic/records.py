"""The sampled request: what the tuner keeps of one request that a server was sent.

Only what decides the answer is kept. User names, headers and ids of the log do not survive
reading, and the representations of these values show no request text.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

UNLABELLED = "unlabelled"
"""Task of a request whose metadata names none."""

DEFAULT_TEMPERATURE = 1.0
"""What OpenAI-style servers use when the body has no temperature."""

DEFAULT_MAX_TOKENS = 128
"""Used when the body sets no limit: servers then run to the context's end, tuning must not."""

MAX_TEMPERATURE = 10.0
"""Above this the distribution is flat and the number is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: `system`, `user` or `assistant`.
        content: Text of the turn; may be empty.
    """

    role: str
    content: str

    def __repr__(self) -> str:
        """Role and length, without the text."""
        return f"Message(role={self.role!r}, {len(self.content)} characters)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRequest:
    """One request, either a conversation or a bare prompt.

    Attributes:
        request_id: Position in its source, for example `line-12`. Ids found in the file are
            not kept, since they may name a user.
        messages: The conversation, for a chat template; empty for a bare prompt.
        prompt: Text to continue as it stands, or None for a conversation.
        task: Label from the metadata key `task`.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus mass, 1 is off.
        top_k: Candidates kept, 0 is off.
        max_tokens: Limit on the answer's length in tokens.
        stop: Texts that end the answer.
        seed: The request's own seed, or None.
    """

    request_id: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    task: str = UNLABELLED
    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("a request needs either messages or a prompt, and not both")
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= MAX_TEMPERATURE):
            raise ValueError(
                f"temperature = {self.temperature}: must lie between 0 and {MAX_TEMPERATURE:g}"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p = {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k}: must be 0 (off) or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens}: must be 1 or more")

    def __repr__(self) -> str:
        """Identity and sampling settings, without any text of the request."""
        return (
            f"SampledRequest(request_id={self.request_id!r}, task={self.task!r}, "
            f"{len(self.messages)} messages, {self.num_characters} characters, "
            f"temperature={self.temperature:g}, top_p={self.top_p:g}, top_k={self.top_k}, "
            f"max_tokens={self.max_tokens}, {len(self.stop)} stop texts, seed={self.seed})"
        )

    @property
    def num_characters(self) -> int:
        """Characters of request text, template excluded."""
        return len(self.prompt or "") + sum(len(message.content) for message in self.messages)

    def digest(self) -> str:
        """SHA-256 over the request's canonical JSON; `request_id` does not count."""
        canonical = {
            "max_tokens": self.max_tokens,
            "messages": [[message.role, message.content] for message in self.messages],
            "prompt": self.prompt,
            "seed": self.seed,
            "stop": list(self.stop),
            "task": self.task,
            "temperature": float(self.temperature),
            "top_k": self.top_k,
            "top_p": float(self.top_p),
        }
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

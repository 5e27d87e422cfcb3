"""The state of one request while it is decoded. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.rng import Key
from engine.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of the engine.

    Attributes:
        request_id: Name in results.
        prompt_tokens: At least one token id.
        params: Sampling parameters.
        task: Bucket the request is counted in.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    params: SamplingParams
    task: str = "unlabelled"


@dataclass(slots=True)
class Sequence:
    """A request in a slot.

    The newest token has no keys and values yet; all before it have.

    Attributes:
        request: What was asked.
        tokens: Prompt and output so far.
        round_index: Rounds done; part of the key of all randomness.
        finish_reason: None while running.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    round_index: int = 0
    finish_reason: FinishReason | None = None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt_tokens)

    @property
    def output_tokens(self) -> list[int]:
        """Output so far."""
        return self.tokens[len(self.request.prompt_tokens) :]

    def key(self, ahead: int = 0) -> Key:
        """What the next round's randomness depends on, at its first new position or after it."""
        return self.request.params.seed, self.round_index + 1, len(self.tokens) + ahead

    def max_drafts(self, max_len: int) -> int:
        """Draft tokens that can still be of use: the round emits one more than it accepts.

        Args:
            max_len: Positions a slot holds; the verify pass needs one for every draft.
        """
        by_length = self.request.params.max_tokens - self.num_output_tokens - 1
        return max(0, min(by_length, max_len - len(self.tokens)))

    def append(self, tokens: list[int], eos_token_ids: frozenset[int], max_len: int) -> int:
        """Take a round's tokens up to the first that ends the output.

        Args:
            tokens: Accepted tokens and the one after them.
            eos_token_ids: End tokens of the model.
            max_len: Positions a slot holds.

        Returns:
            How many tokens were taken.
        """
        params = self.request.params
        stops = (
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_token_ids
        )
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if token in stops:
                self.finish_reason = FinishReason.STOP
            elif self.num_output_tokens >= params.max_tokens or len(self.tokens) > max_len:
                self.finish_reason = FinishReason.LENGTH
            if self.finish_reason is not None:
                return count
        return len(tokens)

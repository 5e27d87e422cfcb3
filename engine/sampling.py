"""How a request wants its tokens. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request wants its tokens.

    Attributes:
        temperature: 0 takes the most likely token; any positive value samples.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Keep this many most likely tokens; 0 is off.
        max_tokens: Output tokens at most, the end token included.
        seed: Seed of the request's randomness.
        ignore_eos: Go on after an end token (measurements only).
        stop_token_ids: Further ids that end the output.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 128
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature = {self.temperature}: must be 0 or more, and finite")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p = {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise RequestError(f"top_k = {self.top_k}: must be 0 (off) or more")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens = {self.max_tokens}: must be 1 or more")

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0: exact argmax, no division."""
        return self.temperature == 0.0

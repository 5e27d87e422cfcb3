"""What a replay of logged answers is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.traffic.workload import DEFAULT_MAX_REQUESTS

LogProbs = Literal["processed", "raw"]
"""Log-probabilities after or before temperature, top-k and top-p; vLLM's default is before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Everything a replay depends on.

    Attributes:
        logs: JSONL of requests with their responses, plain or gzip.
        drafter: `ngram`, the name of a shipped drafter, a folder or a hub repository; the last
            two may have a name of their own in front, as `NAME=DIR`.
        target: The model that answered: its tokenizer splits what is text in the log, and is
            compared with the draft's. None where all is token ids.
        log_probs: What the log holds; None where no answer makes a difference.
        max_num_speculative_tokens: Largest K.
        draft_temperature: None follows each request.
        max_answers: Answers to take, from the start of the log.
        device: Where to run.
    """

    logs: Path
    drafter: str
    target: str | None = None
    log_probs: LogProbs | None = None
    max_num_speculative_tokens: int = 8
    draft_temperature: float | None = None
    max_answers: int = DEFAULT_MAX_REQUESTS
    device: Literal["auto", "cpu", "cuda"] = "auto"

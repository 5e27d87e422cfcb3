"""The child's side of a speed measurement: answers commands, one line of JSON each way.

Shared by ours and the peers, so that every rate comes from the same arithmetic. Standard library
only: each peer has an environment of its own.

A command: {"prompts": [[ids]], "batch": B, "max_tokens": N, "num_drafts": K}, K = 0 for plain
decoding. The prompts are answered B at a time, greedily, end tokens ignored.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WARM_UP_REQUESTS = 4
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class BatchTimes:
    """What happened to one batch.

    Attributes:
        begin_s: Clock before the first prompt is handed over,
        first_s: when every request of the batch has its first token,
        end_s: and when all are done.
        num_first_tokens: Tokens there at `first_s`.
        outputs: The answer to each prompt.
    """

    begin_s: float
    first_s: float
    end_s: float
    num_first_tokens: int
    outputs: list[list[int]]

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(output) for output in self.outputs)


RunBatch = Callable[[list[list[int]], int, int], BatchTimes]
"""Answers prompts together: their ids, tokens per answer, K."""


def serve(open_model: Callable[[dict[str, Any]], RunBatch]) -> None:
    """Load a model and answer commands from standard input until it ends.

    The first argument describes the model, as JSON; the second is the number of the descriptor
    that takes the answers: libraries print to standard output. An error ends the process.

    Args:
        open_model: Gets the description.
    """
    description, descriptor = json.loads(sys.argv[1]), int(sys.argv[2])
    # Processes started from here would keep the pipe open after our end.
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as answers:
        run_batch = open_model(description)
        answers.write('{"ready": true}\n')
        for line in sys.stdin:
            answers.write(json.dumps(_measure(run_batch, json.loads(line))) + "\n")


def _measure(run_batch: RunBatch, command: dict[str, Any]) -> dict[str, Any]:
    prompts, batch = command["prompts"], command["batch"]
    # A process that was stopped has its threads asleep and its caches cold.
    run_batch(prompts[: min(batch, _WARM_UP_REQUESTS)], _WARM_UP_TOKENS, command["num_drafts"])
    done = [
        run_batch(prompts[start : start + batch], command["max_tokens"], command["num_drafts"])
        for start in range(0, len(prompts), batch)
    ]
    num_tokens = sum(times.num_tokens for times in done)
    num_decoded = num_tokens - sum(times.num_first_tokens for times in done)
    return {
        "decode_tokens_per_s": num_decoded / sum(times.end_s - times.first_s for times in done),
        "total_tokens_per_s": num_tokens / sum(times.end_s - times.begin_s for times in done),
        "outputs": [output for times in done for output in times.outputs],
    }

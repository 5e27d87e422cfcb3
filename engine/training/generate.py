"""Answers of the target, with its hidden states, for drafters to learn from.

The states come out of the same passes that generate the answer, so no token is processed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from engine.drafters.recorder import StateRecorder
from engine.engine import Engine
from engine.request import Request
from engine.training.corpus import Example, write_shard

_SHARD_EXAMPLES = 64


def generate_corpus(
    engine: Engine,
    requests: Sequence[Request],
    folder: Path,
    feature_layers: tuple[int, ...],
    *,
    prefix: str,
    stop: Callable[[], bool],
    on_tokens: Callable[[int], None] | None = None,
) -> int:
    """Answer requests and write shards until they or the time run out.

    Answers that are under way when `stop` says so are kept as far as they got: an answer may end
    anywhere, as under a limit on its length.

    Args:
        engine: Its slots set the batch size; a loaded drafter is replaced.
        requests: What to answer, in order.
        folder: Where the shards go; exists.
        feature_layers: As in `StateRecorder`.
        prefix: Start of the shards' names, different for every writer.
        stop: Asked after every round.
        on_tokens: Told the number of answer tokens of each round.

    Returns:
        Answer tokens written.
    """
    recorder = StateRecorder(feature_layers)
    engine.load(recorder)
    waiting = list(requests)[::-1]
    done: list[Example] = []
    num_written = num_shards = 0

    def retire(slot: int) -> None:
        sequence = engine.release(slot)
        states = recorder.take(slot)
        if sequence.num_output_tokens > 2:
            done.append(
                Example(
                    tokens=torch.tensor(sequence.tokens),
                    prompt_len=len(sequence.request.prompt_tokens),
                    temperature=sequence.request.params.temperature,
                    task=sequence.request.task,
                    states=states.bfloat16(),
                )
            )

    def flush() -> None:
        nonlocal num_written, num_shards
        write_shard(folder / f"{prefix}-{num_shards:05d}.safetensors", done)
        num_shards += 1
        num_written += sum(example.num_answer_tokens for example in done)
        done.clear()

    while (waiting or engine.sequences) and not stop():
        for slot in range(engine.cache.num_slots):
            if slot not in engine.sequences and waiting:
                engine.admit(slot, waiting.pop())
        outcomes = engine.round()
        for slot in [s for s, q in engine.sequences.items() if q.finish_reason is not None]:
            retire(slot)
        if len(done) >= _SHARD_EXAMPLES:
            flush()
        if on_tokens is not None:
            on_tokens(sum(outcome.num_emitted for outcome in outcomes))
    for slot in list(engine.sequences):
        retire(slot)
    if done:
        flush()
    engine.load(None)
    return num_written

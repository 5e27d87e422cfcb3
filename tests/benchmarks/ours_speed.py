"""How fast our engine decodes, plain and with a draft model. Started by `contestants`.

The description: {"model": folder, "draft": folder, "dtype": "float32", "max_len": N, "slots": B}.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engine.drafters.factory import build_drafter, from_folder
from engine.request import Request
from engine.sampling import SamplingParams
from tests.benchmarks.load_engine import load_engine
from tests.benchmarks.speed_child import BatchTimes, RunBatch, serve


def open_model(description: dict[str, Any]) -> RunBatch:
    """Load the target and build the drafter."""
    folder = Path(description["model"])
    engine = load_engine(
        folder,
        dtype=description["dtype"],
        slots=description["slots"],
        max_len=description["max_len"],
    )
    drafter = build_drafter(from_folder("draft", Path(description["draft"])), engine, folder)

    def run_batch(prompts: list[list[int]], max_tokens: int, num_drafts: int) -> BatchTimes:
        engine.load(drafter if num_drafts else None)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        begin_s = time.perf_counter()
        for slot, prompt in enumerate(prompts):
            engine.admit(
                slot, Request(request_id=str(slot), prompt_tokens=tuple(prompt), params=params)
            )
        first_s = time.perf_counter()
        while engine.round(num_drafts):
            pass
        end_s = time.perf_counter()
        outputs = [engine.release(slot).output_tokens for slot in range(len(prompts))]
        return BatchTimes(begin_s, first_s, end_s, len(prompts), outputs)

    return run_batch


if __name__ == "__main__":
    serve(open_model)

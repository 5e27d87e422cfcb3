"""How fast vLLM decodes. Runs in vLLM's own environment, started by `contestants`.

The description: {"model": folder, "dtype": "float32", "compiled": true, "max_len": N, "slots": B}.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from tests.benchmarks.speed_child import BatchTimes, RunBatch, serve


def open_model(description: dict[str, Any]) -> RunBatch:
    """Start vLLM."""
    llm = LLM(
        description["model"],
        dtype=description["dtype"],
        max_model_len=description["max_len"],
        max_num_seqs=description["slots"],
        enforce_eager=not description["compiled"],
        # The same prompts come again and again.
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    core = llm.llm_engine
    runs = itertools.count()

    def run_batch(prompts: list[list[int]], max_tokens: int, num_drafts: int) -> BatchTimes:
        if num_drafts:
            raise ValueError("vLLM is measured without speculation")
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        run = next(runs)
        outputs: dict[str, list[int]] = {f"{run}-{row}": [] for row in range(len(prompts))}
        first_s, num_first_tokens = None, 0
        begin_s = time.perf_counter()
        for name, prompt in zip(outputs, prompts, strict=True):
            core.add_request(name, TokensPrompt(prompt_token_ids=prompt), params)
        while core.has_unfinished_requests():
            for answer in core.step():
                outputs[answer.request_id] += answer.outputs[0].token_ids
            if first_s is None and all(outputs.values()):
                first_s = time.perf_counter()
                num_first_tokens = sum(len(output) for output in outputs.values())
        end_s = time.perf_counter()
        if first_s is None:
            raise RuntimeError("a request ended without a token")
        return BatchTimes(begin_s, first_s, end_s, num_first_tokens, list(outputs.values()))

    return run_batch


if __name__ == "__main__":
    serve(open_model)

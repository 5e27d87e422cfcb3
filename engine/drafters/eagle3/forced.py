"""What an EAGLE-3 head would draft along a recorded answer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.drafters.eagle3.head import Eagle3Head
from engine.drafters.eagle3.unroll import unroll
from engine.kernels.rotary import RotaryTables
from engine.record import Trajectory


@torch.inference_mode()
def forced_logits(
    head: Eagle3Head,
    embedding: Tensor,
    rotary: RotaryTables,
    trajectory: Trajectory,
    num_steps: int,
) -> Iterator[Tensor]:
    """Logits of the drafts from every start of an answer, given the answer's own tokens.

    Args:
        head: The head.
        embedding: [vocab, hidden], the target's.
        rotary: Tables for the whole text.
        trajectory: Recorded with the head's feature layers.
        num_steps: Drafts per start; fewer where the answer is shorter.

    Yields:
        [n - j, draft vocab] float32 for step j: row i is the draft of output token i + j + 1 by a
        round that starts after i + 1 output tokens; n is the number of output tokens less one.
    """
    tokens = [*trajectory.request.prompt_tokens, *trajectory.output_tokens]
    features = trajectory.features_of(head.config.feature_layers)
    count = len(trajectory.output_tokens) - 1
    first = len(trajectory.request.prompt_tokens) - 1
    num_steps = min(num_steps, count)
    ids = torch.zeros(features.shape[0] + num_steps, dtype=torch.int64)
    ids[: len(tokens) - 1] = torch.tensor(tokens[1:])
    outputs = unroll(
        head,
        embedding[ids].unsqueeze(0),
        features.to(embedding.dtype).unsqueeze(0),
        torch.arange(first, first + count).unsqueeze(0),
        rotary,
        num_steps,
    )
    for step, out in enumerate(outputs):
        yield head.logits(out[0, : count - step]).float()

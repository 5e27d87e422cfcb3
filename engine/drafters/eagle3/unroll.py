"""An EAGLE-3 head drafting from every position at once, along known text.

Step 0 reads the target's states. Step j reads the head's own output of step j - 1 and the true
token; it sees the step-0 keys up to its start and, of the later steps, those of its own chain.
That is the head's state in the engine after j drafts that the text bears out, so the same
function serves training ("training-time test", arXiv 2503.01840, section 3.2) and replay.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.drafters.eagle3.head import Eagle3Head
from engine.kernels.rotary import RotaryTables, rotate


def unroll(
    head: Eagle3Head,
    embedded: Tensor,
    features: Tensor,
    starts: Tensor,
    rotary: RotaryTables,
    num_steps: int,
) -> Iterator[Tensor]:
    """Outputs of the layer for chains that begin at chosen positions.

    Position t pairs the target's states of token t with the embedding of token t + 1; the chain
    that begins there drafts token t + 2 at step 0 and token t + 2 + j at step j.

    Args:
        head: Any dtype; gradients flow if its parameters want them.
        embedded: [B, L + num_steps, hidden], the embedding of token t + 1 at index t; what lies
            beyond a row's text is read only by chains that go beyond it.
        features: [B, L, 3 target hidden]; padding after a row's end is never attended to from
            before it.
        starts: [B, S] int64, the positions where chains begin.
        rotary: Tables of at least L positions.
        num_steps: Drafts per chain.

    Yields:
        [B, S, hidden] for each step, before the final norm.
    """
    decoder = head.config.decoder
    batch, length = features.shape[:2]
    num_kv, head_dim = decoder.num_kv_heads, decoder.head_dim
    group = decoder.num_heads // num_kv
    attention = head.midlayer.self_attn
    scale = head_dim**-0.5

    def heads(projected: Tensor, positions: Tensor | None) -> Tensor:
        """[B, n, heads * head_dim] -> [B, heads, n, head_dim], rotated."""
        shaped = projected.view(batch, projected.shape[1], -1, head_dim)
        if positions is not None:
            # Chains that go beyond the text may go beyond the tables; nothing of them is read.
            shaped = rotate(shaped, rotary.at(positions.clamp(max=rotary.cos.shape[0] - 1)))
        return shaped.transpose(1, 2)

    def at(x: Tensor, positions: Tensor) -> Tensor:
        return x.gather(1, positions.unsqueeze(2).expand(-1, -1, x.shape[2]))

    out = head.fuse(features)
    joined, residual = head.attention_input(embedded[:, :length], out)
    every = torch.arange(length, device=features.device).expand(batch, -1)
    context_keys = heads(attention.k_proj(joined), every)
    context_values = heads(attention.v_proj(joined), None)
    joined, residual = at(joined, starts), at(residual, starts)
    hidden_from = (every.unsqueeze(1) > starts.unsqueeze(2)).unsqueeze(1).unsqueeze(1)
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for step in range(num_steps):
        positions = starts + step
        if step:
            joined, residual = head.attention_input(at(embedded, positions), out)
            own_keys.append(heads(attention.k_proj(joined), positions))
            own_values.append(heads(attention.v_proj(joined), None))
        query = heads(attention.q_proj(joined), positions) * scale
        query = query.view(batch, num_kv, group, -1, head_dim)
        # [B, kv, group, S, L]: each key/value head serves a group of queries.
        scores = query @ context_keys.unsqueeze(2).transpose(-1, -2)
        scores = scores.masked_fill(hidden_from, float("-inf"))
        own = [(query * keys.unsqueeze(2)).sum(-1, keepdim=True) for keys in own_keys]
        at_least = torch.promote_types(scores.dtype, torch.float32)
        weights = torch.cat([scores, *own], dim=-1).softmax(-1, at_least).to(scores.dtype)
        attended = weights[..., :length] @ context_values.unsqueeze(2)
        for index, values in enumerate(own_values):
            attended = attended + weights[..., length + index, None] * values.unsqueeze(2)
        attended = attended.flatten(1, 2).transpose(1, 2).flatten(2)
        out = head.after_attention(attended, residual)
        yield out

"""Where the tokens of one forward pass go.

A ragged batch is flattened for the linear layers and padded for attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Index tensors of one forward pass over B rows with q_len tokens each.

    Attributes:
        batch_size: B.
        max_q_len: Q, the longest row.
        kv_len: L, the longest context after this pass.
        positions: [T] int64, position of each token in its sequence.
        token_slots: [T] int64, cache slot of each token.
        row_slots: The slots as a slice when they are 0..B-1 (no copy), else [B] int64.
        pad_index: [B * Q] int64 into T, or None when no row is shorter than Q.
        unpad_index: [T] int64 into B * Q, or None likewise.
        mask: [B, 1, Q, L] additive float: 0 where visible, -inf elsewhere.
        row_ends: Cumulative end of each row in T.
    """

    batch_size: int
    max_q_len: int
    kv_len: int
    positions: Tensor
    token_slots: Tensor
    row_slots: slice | Tensor
    pad_index: Tensor | None
    unpad_index: Tensor | None
    mask: Tensor
    row_ends: tuple[int, ...]


def make_layout(
    slots: Sequence[int],
    starts: Sequence[int],
    q_lens: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> StepLayout:
    """Lay out a forward pass.

    Args:
        slots: Cache slot of each row.
        starts: Position of each row's first token; everything before it is in the cache.
        q_lens: Tokens of each row in this pass, all >= 1.
        dtype: Floating type of the attention mask.
        device: Where the index tensors live.
    """
    batch_size, max_q_len = len(slots), max(q_lens)
    kv_len = max(start + q_len for start, q_len in zip(starts, q_lens, strict=True))
    positions: list[int] = []
    token_slots: list[int] = []
    pad_index: list[int] = []
    unpad_index: list[int] = []
    row_ends: list[int] = []
    for row, (slot, start, q_len) in enumerate(zip(slots, starts, q_lens, strict=True)):
        first = len(positions)
        positions.extend(range(start, start + q_len))
        token_slots.extend([slot] * q_len)
        # Padding repeats the row's last token: its output is computed and thrown away.
        pad_index.extend(first + min(i, q_len - 1) for i in range(max_q_len))
        unpad_index.extend(row * max_q_len + i for i in range(q_len))
        row_ends.append(len(positions))
    ragged = min(q_lens) != max_q_len
    query_positions = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(
        max_q_len, device=device
    )
    visible = torch.arange(kv_len, device=device) <= query_positions.unsqueeze(2)
    mask = torch.zeros(batch_size, 1, max_q_len, kv_len, dtype=dtype, device=device)
    mask.masked_fill_(~visible.unsqueeze(1), float("-inf"))
    dense = list(slots) == list(range(batch_size))
    return StepLayout(
        batch_size=batch_size,
        max_q_len=max_q_len,
        kv_len=kv_len,
        positions=torch.tensor(positions, device=device),
        token_slots=torch.tensor(token_slots, device=device),
        row_slots=slice(0, batch_size) if dense else torch.tensor(slots, device=device),
        pad_index=torch.tensor(pad_index, device=device) if ragged else None,
        unpad_index=torch.tensor(unpad_index, device=device) if ragged else None,
        mask=mask,
        row_ends=tuple(row_ends),
    )

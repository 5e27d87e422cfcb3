"""Where the tokens of one forward pass go.

A ragged batch is flattened for the linear layers; the reference attention sees a padded view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """One forward pass over B rows, T tokens in all, rows one after the other.

    Attributes:
        slots: Cache slot of each row.
        starts: Position of each row's first token; everything before it is in the cache.
        q_lens: Tokens of each row, all >= 1.
        positions: [T] int64, position of each token in its sequence.
        token_slots: [T] int64, cache slot of each token.
        row_ends: [B] int64, cumulative end of each row in T.
    """

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    q_lens: tuple[int, ...]
    positions: Tensor
    token_slots: Tensor
    row_ends: Tensor

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.slots)

    @property
    def max_q_len(self) -> int:
        """Q, the longest row."""
        return max(self.q_lens)

    @property
    def kv_len(self) -> int:
        """L, the longest context after this pass."""
        return max(start + q_len for start, q_len in zip(self.starts, self.q_lens, strict=True))


def make_layout(
    slots: Sequence[int],
    starts: Sequence[int],
    q_lens: Sequence[int],
    *,
    device: torch.device,
) -> StepLayout:
    """Lay out a forward pass.

    Args:
        slots: Cache slot of each row.
        starts: Position of each row's first token.
        q_lens: Tokens of each row in this pass, all >= 1.
        device: Where the index tensors live.
    """
    positions: list[int] = []
    token_slots: list[int] = []
    row_ends: list[int] = []
    for slot, start, q_len in zip(slots, starts, q_lens, strict=True):
        positions.extend(range(start, start + q_len))
        token_slots.extend([slot] * q_len)
        row_ends.append(len(positions))
    return StepLayout(
        slots=tuple(slots),
        starts=tuple(starts),
        q_lens=tuple(q_lens),
        positions=torch.tensor(positions, device=device),
        token_slots=torch.tensor(token_slots, device=device),
        row_ends=torch.tensor(row_ends, device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedLayout:
    """The same pass with all rows of one length.

    Attributes:
        row_slots: The slots as a slice when they are 0..B-1 (no copy), else [B] int64.
        pad_index: [B * Q] int64 into T, or None when no row is shorter than Q.
        unpad_index: [T] int64 into B * Q, or None likewise.
        mask: [B, 1, Q, L] additive float: 0 where visible, -inf elsewhere.
    """

    row_slots: slice | Tensor
    pad_index: Tensor | None
    unpad_index: Tensor | None
    mask: Tensor


def pad(layout: StepLayout, dtype: torch.dtype) -> PaddedLayout:
    """Pad a pass.

    Args:
        layout: The pass.
        dtype: Floating type of the attention mask.
    """
    device = layout.positions.device
    batch_size, max_q_len, kv_len = layout.batch_size, layout.max_q_len, layout.kv_len
    pad_index: list[int] = []
    unpad_index: list[int] = []
    first = 0
    for row, q_len in enumerate(layout.q_lens):
        # Padding repeats the row's last token: its output is computed and thrown away.
        pad_index.extend(first + min(i, q_len - 1) for i in range(max_q_len))
        unpad_index.extend(row * max_q_len + i for i in range(q_len))
        first += q_len
    is_ragged = min(layout.q_lens) != max_q_len
    query_positions = torch.tensor(layout.starts, device=device).unsqueeze(1) + torch.arange(
        max_q_len, device=device
    )
    visible = torch.arange(kv_len, device=device) <= query_positions.unsqueeze(2)
    mask = torch.zeros(batch_size, 1, max_q_len, kv_len, dtype=dtype, device=device)
    mask.masked_fill_(~visible.unsqueeze(1), float("-inf"))
    is_dense = layout.slots == tuple(range(batch_size))
    return PaddedLayout(
        row_slots=slice(0, batch_size) if is_dense else torch.tensor(layout.slots, device=device),
        pad_index=torch.tensor(pad_index, device=device) if is_ragged else None,
        unpad_index=torch.tensor(unpad_index, device=device) if is_ragged else None,
        mask=mask,
    )

"""Index tensors of a ragged forward pass."""

from __future__ import annotations

import torch

from engine.layout import PaddedLayout, StepLayout, make_layout, pad


def layout(slots: list[int], starts: list[int], q_lens: list[int]) -> StepLayout:
    """A layout on the CPU."""
    return make_layout(slots, starts, q_lens, device=torch.device("cpu"))


def padded(slots: list[int], starts: list[int], q_lens: list[int]) -> PaddedLayout:
    """The same with rows of one length and a float32 mask."""
    return pad(layout(slots, starts, q_lens), torch.float32)


def test_tokens_know_their_position_and_slot() -> None:
    """Rows follow one another; positions count from each row's start."""
    made = layout([4, 1], [10, 0], [2, 3])

    assert made.positions.tolist() == [10, 11, 0, 1, 2]
    assert made.token_slots.tolist() == [4, 4, 1, 1, 1]
    assert made.row_ends.tolist() == [2, 5]
    assert (made.batch_size, made.max_q_len, made.kv_len) == (2, 3, 12)


def test_padding_and_unpadding_are_inverse() -> None:
    """Padding repeats a row's last token; unpadding finds every token again."""
    made = padded([0, 1, 2], [5, 0, 3], [1, 4, 2])
    assert made.pad_index is not None
    assert made.unpad_index is not None
    tokens = torch.arange(7)

    rows = tokens[made.pad_index]

    assert rows.view(3, 4).tolist() == [[0, 0, 0, 0], [1, 2, 3, 4], [5, 6, 6, 6]]
    assert torch.equal(rows[made.unpad_index], tokens)


def test_rows_of_one_length_need_no_padding() -> None:
    """The common decode step does without index copies."""
    made = padded([0, 1], [5, 9], [3, 3])

    assert made.pad_index is None
    assert made.unpad_index is None


def test_slots_in_order_are_a_slice() -> None:
    """Slots 0..B-1 are read without a copy; any other set is gathered in its order."""
    assert padded([0, 1, 2], [1, 1, 1], [1, 1, 1]).row_slots == slice(0, 3)
    for slots in ([1, 2], [1, 0], [0, 2]):
        rows = padded(slots, [1, 1], [1, 1]).row_slots
        assert isinstance(rows, torch.Tensor)
        assert rows.tolist() == slots


def test_every_token_sees_its_own_past_and_itself() -> None:
    """The mask is 0 up to the token's own position and -inf after it."""
    starts, q_lens = [6, 0, 2], [1, 3, 2]
    made = padded([0, 1, 2], starts, q_lens)

    assert made.mask.shape == (3, 1, 3, 7)
    for row, (start, q_len) in enumerate(zip(starts, q_lens, strict=True)):
        for query in range(q_len):
            seen = made.mask[row, 0, query] == 0
            assert seen.tolist() == [key <= start + query for key in range(7)]
    assert set(made.mask.flatten().tolist()) == {0.0, float("-inf")}


def test_no_query_is_blind() -> None:
    """Padded queries see something too: a softmax over nothing would be NaN."""
    made = padded([0, 1], [0, 0], [1, 5])

    assert bool((made.mask == 0).any(-1).all())

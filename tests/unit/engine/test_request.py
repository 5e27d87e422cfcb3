"""The bookkeeping of one request: limits, ends, and how much may still be drafted."""

from __future__ import annotations

from itertools import product

import pytest

from engine.request import FinishReason, Sequence
from tests.support.tiny_models import request

EOS = frozenset({9})


def running(
    prompt: tuple[int, ...] = (1, 2, 3), output: tuple[int, ...] = (), **params: object
) -> Sequence:
    """A sequence with some output."""
    return Sequence(request(prompt, **params), [*prompt, *output])  # type: ignore[arg-type]


def test_output_is_what_follows_the_prompt() -> None:
    """Prompt tokens are not output."""
    sequence = running(output=(4, 5))

    assert sequence.num_output_tokens == 2
    assert sequence.output_tokens == [4, 5]


@pytest.mark.parametrize("at", range(5))
def test_an_end_token_cuts_a_block_at_any_place(at: int) -> None:
    """The end token is kept, nothing after it is."""
    block = [4, 5, 6, 7, 8]
    block[at] = 9
    sequence = running()

    assert sequence.append(block, EOS, max_len=100) == at + 1
    assert sequence.output_tokens == block[: at + 1]
    assert sequence.finish_reason is FinishReason.STOP


def test_a_stop_token_ends_even_when_end_tokens_are_ignored() -> None:
    """`ignore_eos` ignores the model's end tokens only."""
    sequence = running(ignore_eos=True, stop_token_ids=frozenset({7}))

    assert sequence.append([9, 6, 7, 8], EOS, max_len=100) == 3
    assert sequence.output_tokens == [9, 6, 7]
    assert sequence.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("room", range(1, 5))
def test_max_tokens_cuts_a_block(room: int) -> None:
    """Output never exceeds max_tokens."""
    sequence = running(output=(4, 4), max_tokens=2 + room)

    assert sequence.append([5, 6, 7, 8, 5], EOS, max_len=100) == room
    assert sequence.num_output_tokens == 2 + room
    assert sequence.finish_reason is FinishReason.LENGTH


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    """The reason is STOP when the last token that fits ends the output itself."""
    sequence = running(max_tokens=1)

    sequence.append([9], EOS, max_len=100)

    assert sequence.finish_reason is FinishReason.STOP


def test_the_slot_may_hold_all_but_the_newest_token() -> None:
    """A sequence ends when its newest token has no position left to be processed at."""
    sequence = running(prompt=(1, 2, 3), max_tokens=50)

    assert sequence.append([4, 5], EOS, max_len=5) == 2
    assert sequence.finish_reason is None
    assert sequence.append([6, 7], EOS, max_len=5) == 1
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_block_that_ends_nothing_is_taken_whole() -> None:
    """No limit, no end: still running."""
    sequence = running(max_tokens=50)

    assert sequence.append([4, 5, 6], EOS, max_len=100) == 3
    assert sequence.finish_reason is None


@pytest.mark.parametrize(
    ("num_output", "max_tokens", "max_len"), list(product(range(1, 6), range(6, 8), range(8, 14)))
)
def test_drafts_always_fit(num_output: int, max_tokens: int, max_len: int) -> None:
    """The largest draft that fits fills the nearer limit exactly and passes neither."""
    sequence = running(output=(4,) * num_output, max_tokens=max_tokens)

    drafts = sequence.max_drafts(max_len)

    last_position = len(sequence.tokens) - 1 + drafts
    assert last_position < max_len
    assert num_output + drafts + 1 <= max_tokens
    assert last_position == max_len - 1 or num_output + drafts + 1 == max_tokens


def test_nothing_is_drafted_for_the_last_token() -> None:
    """The one token that is missing comes from the verify pass itself."""
    assert running(output=(4, 5), max_tokens=3).max_drafts(100) == 0
    assert running(output=(4, 5), max_tokens=30).max_drafts(5) == 0

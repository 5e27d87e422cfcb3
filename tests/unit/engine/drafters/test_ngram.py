"""Prompt lookup: which continuation is found, and that the index keeps up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.ngram import NgramDrafter, NgramIndex
from engine.errors import EngineError
from engine.request import Sequence
from tests.support.tiny_models import request

NO_FEATURES = torch.empty(1, 0)


def found(tokens: list[int], limit: int = 10, *, min_n: int = 1, max_n: int = 3) -> list[int]:
    """The continuation of a whole list."""
    index = NgramIndex(min_n, max_n)
    index.extend(tokens)
    return index.continuation(tokens, limit)


def brute_force(tokens: list[int], limit: int, min_n: int, max_n: int) -> list[int]:
    """Longest suffix first, earliest occurrence first."""
    for size in range(max_n, min_n - 1, -1):
        if size >= len(tokens):
            continue
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + limit]
    return []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # what followed before
        ([1, 5, 2, 1, 6, 2, 1], [6, 2, 1]),  # two tokens match better than one
        ([1, 7, 1, 8, 1], [7, 1, 8, 1]),  # the earliest of equals
        ([4, 4], [4]),  # overlapping itself
        ([4, 4, 4, 4], [4]),  # longest first: the continuation is short
        ([1, 2, 3], []),  # nothing repeats
        ([7], []),  # nothing before it
    ],
)
def test_the_longest_and_earliest_match_continues(tokens: list[int], expected: list[int]) -> None:
    """Longest suffix n-gram, earliest occurrence, up to the end of the text."""
    assert found(tokens) == expected


@pytest.mark.parametrize("limit", range(5))
def test_the_limit_is_kept(limit: int) -> None:
    """Never more tokens than asked for, and none when none are wanted."""
    assert found([1, 2, 3, 9, 1, 2, 3], limit) == [9, 1, 2, 3][:limit]


def test_matches_shorter_than_the_minimum_do_not_count() -> None:
    """One repeated token is no match when two are needed."""
    assert found([1, 7, 2, 1], min_n=2) == []
    assert found([2, 1, 7, 2, 1], min_n=2) == [7, 2, 1]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 30), max_size=5),
    min_n=st.integers(1, 2),
    extra=st.integers(0, 2),
    limit=st.integers(0, 6),
)
def test_an_index_that_grows_equals_a_search(
    tokens: list[int], cuts: list[int], min_n: int, extra: int, limit: int
) -> None:
    """Text that comes in pieces of any size is found as a search over the whole finds it."""
    index = NgramIndex(min_n, min_n + extra)
    for cut in sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)}):
        index.extend(tokens[:cut])
        assert index.continuation(tokens[:cut], limit) == brute_force(
            tokens[:cut], limit, min_n, min_n + extra
        )


def sequence(*tokens: int) -> Sequence:
    """A running sequence."""
    return Sequence(request(tokens[:1]), list(tokens))


def test_each_slot_looks_up_its_own_text() -> None:
    """Rows in any order, with limits of their own, and no q: the delta rule."""
    drafter = NgramDrafter("ngram", 3, min_n=1, max_n=3)
    first, second, third = sequence(1, 2, 1), sequence(5, 6, 7, 5), sequence(3, 4)
    for slot, one in enumerate((first, second, third)):
        drafter.admit(slot, one, NO_FEATURES)

    proposal = drafter.propose([2, 0, 1], [third, first, second], [4, 1, 2], None)

    assert proposal.tokens == [[], [2], [6, 7]]
    assert proposal.probs is None


def test_emitted_tokens_are_found_and_a_former_request_is_not() -> None:
    """Ingest adds text, admit forgets it."""
    drafter = NgramDrafter("ngram", 1, min_n=1, max_n=2)
    running = sequence(1, 2)
    drafter.admit(0, running, NO_FEATURES)
    running.tokens += [3, 1]
    drafter.ingest(0, running, NO_FEATURES)
    assert drafter.propose([0], [running], [5], None).tokens == [[2, 3, 1]]

    other = sequence(9, 1)
    drafter.admit(0, other, NO_FEATURES)

    assert drafter.propose([0], [other], [5], None).tokens == [[]]


def test_restoring_is_admitting() -> None:
    """The index is rebuilt from the tokens; there is nothing to snapshot."""
    drafter = NgramDrafter("ngram", 2, min_n=1, max_n=2)
    running = sequence(1, 2, 3, 1)

    assert drafter.snapshot(0) is None
    drafter.restore(1, running, None)

    assert drafter.propose([1], [running], [2], None).tokens == [[2, 3]]
    assert drafter.num_bytes == 0


def test_restoring_leaves_no_work_to_the_next_round() -> None:
    """Blocks start in the middle of answers, where a server has long indexed the tokens before."""
    drafter = NgramDrafter("ngram", 1, min_n=1, max_n=1)
    running = sequence(1, 2, 3, 1)
    drafter.restore(0, running, None)
    running.tokens[0] = 7  # an index that is built only now would not find the newest token

    assert drafter.propose([0], [running], [2], None).tokens == [[2, 3]]


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 2), (3, 2), (-1, -1)])
def test_impossible_sizes_are_refused(min_n: int, max_n: int) -> None:
    """The message names both."""
    with pytest.raises(EngineError, match=f"n-gram sizes {min_n}..{max_n}"):
        NgramDrafter("ngram", 1, min_n=min_n, max_n=max_n)

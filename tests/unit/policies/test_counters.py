"""Counters of speculation and the ratios derived from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.counters import SpecDecodeCounters


def test_hand_trace() -> None:
    """A19: three rounds at K = 4 that accept 4, 0 and 2, each with one extra token."""
    counters = SpecDecodeCounters()
    for accepted in (4, 0, 2):
        counters = counters.add_round(
            num_draft_tokens=4, num_accepted_tokens=accepted, num_emitted_tokens=accepted + 1
        )
    assert counters == SpecDecodeCounters(
        num_drafts=3,
        num_rounds=3,
        num_draft_tokens=12,
        num_accepted_tokens=6,
        num_emitted_tokens=9,
        num_accepted_tokens_per_pos=(2, 2, 1, 1),
    )
    assert counters.draft_acceptance_rate == 0.5
    assert counters.mean_acceptance_length == 3
    assert counters.tokens_per_round == 3
    assert counters.acceptance_rate_per_pos == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))


def test_rounds_without_a_draft_lower_only_tokens_per_round() -> None:
    """A drafter that often drafts nothing keeps its acceptance and loses speed."""
    drafted = SpecDecodeCounters().add_round(
        num_draft_tokens=2, num_accepted_tokens=2, num_emitted_tokens=3
    )
    both = drafted.add_round(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1)
    assert both.draft_acceptance_rate == drafted.draft_acceptance_rate == 1
    assert both.mean_acceptance_length == drafted.mean_acceptance_length == 3
    assert both.tokens_per_round == 2


def test_a_cut_round_emits_less_than_it_accepted() -> None:
    """An end-of-sequence inside a block takes tokens off the emitted count alone."""
    counters = SpecDecodeCounters().add_round(
        num_draft_tokens=4, num_accepted_tokens=4, num_emitted_tokens=2
    )
    assert counters.mean_acceptance_length == 5
    assert counters.tokens_per_round == 2


@pytest.mark.parametrize(
    "counters",
    [SpecDecodeCounters(), SpecDecodeCounters(num_rounds=5, num_emitted_tokens=5)],
    ids=["first token from prefill only", "speculation off"],
)
def test_nothing_drafted_means_absent(counters: SpecDecodeCounters) -> None:
    """A21: without a draft the ratios are None, which is valid JSON, never NaN."""
    assert counters.draft_acceptance_rate is None
    assert counters.mean_acceptance_length is None
    assert counters.acceptance_rate_per_pos == ()
    rates = {"acceptance": counters.draft_acceptance_rate, "length": counters.tokens_per_round}
    assert json.loads(json.dumps(rates, allow_nan=False))["acceptance"] is None


def test_tokens_per_round_without_rounds() -> None:
    """A21: max_tokens = 1 has no decode round, so there is no block efficiency either."""
    assert SpecDecodeCounters().tokens_per_round is None


def test_merge_pads_positions() -> None:
    """Counters from different K add up position by position."""
    short = SpecDecodeCounters().add_round(
        num_draft_tokens=1, num_accepted_tokens=1, num_emitted_tokens=2
    )
    long = SpecDecodeCounters().add_round(
        num_draft_tokens=3, num_accepted_tokens=2, num_emitted_tokens=3
    )
    assert short.merge(long).num_accepted_tokens_per_pos == (2, 1, 0)
    assert short.merge(long) == long.merge(short)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"num_rounds": -1}, "num_rounds = -1"),
        ({"num_drafts": 1, "num_draft_tokens": 1}, "num_drafts = 1: must not exceed num_rounds"),
        ({"num_drafts": 2, "num_rounds": 2, "num_draft_tokens": 1}, "exceed num_draft_tokens"),
        ({"num_rounds": 1, "num_draft_tokens": 1}, "without any draft"),
        (
            {"num_drafts": 1, "num_rounds": 1, "num_draft_tokens": 1, "num_accepted_tokens": 2},
            "num_accepted_tokens = 2: must not exceed num_draft_tokens = 1",
        ),
        ({"num_rounds": 1, "num_emitted_tokens": 2}, "num_emitted_tokens = 2: must not exceed"),
        (
            {"num_drafts": 1, "num_rounds": 1, "num_draft_tokens": 2, "num_accepted_tokens": 1},
            "must add up",
        ),
        (
            {
                "num_drafts": 2,
                "num_rounds": 2,
                "num_draft_tokens": 4,
                "num_accepted_tokens": 2,
                "num_accepted_tokens_per_pos": (0, 2),
            },
            "must fall",
        ),
        (
            {
                "num_drafts": 1,
                "num_rounds": 1,
                "num_draft_tokens": 4,
                "num_accepted_tokens": 0,
                "num_accepted_tokens_per_pos": (1, -1),
            },
            "stay at 0 or more",
        ),
    ],
)
def test_contradictions_are_refused(counts: dict[str, Any], message: str) -> None:
    """Counts that cannot have happened are named in the error."""
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        SpecDecodeCounters(**counts)

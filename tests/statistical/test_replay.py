"""Replay of sampled requests against the engine's own counts, end to end.

Design, the same for every comparison here.
Null: tokens per round replayed on recorded answers and tokens per round that the engine counts on
other answers of the same requests have one expectation.
Test: |replayed - counted| < 4 standard errors of the difference (jackknife over requests on one
side, linearised ratio over requests on the other), n = 250 requests a side and sampling.
Level: 6.4e-5 for one comparison by the normal law, 0.003 for all of this file (Bonferroni over 45).
Effect and power: 4 standard errors are below 6 % of the value everywhere, which is asserted, so a
difference of 10 % is missed at most once in two hundred comparisons. Errors of the formula itself
are smaller than that; those are excluded exactly in tests/property/test_replay_law.py.
Seeds: requests, models and windows are all seeded, so an outcome is the same at every run.
"""

from __future__ import annotations

from functools import cache
from math import hypot

import pytest

from engine.record import Trajectory, record
from engine.replay import replay
from engine.request import Request
from tests.support.replaying import measured, profiles, tokens_per_round
from tests.support.tiny_models import DRAFTERS, random_prompt, request, tiny_engine, tiny_model

VOCAB = 10
MAX_LEN = 64
N = 250
BATCH = 250
SIGMAS = 4.0
EOS = (3,)
SAMPLINGS = {"T=0.7": (0.7, 1.0), "T=1": (1.0, 1.0), "T=1 top_p=0.8": (1.0, 0.8)}
RUNS: list[tuple[str, float | None]] = [
    ("draft", None),
    ("draft", 0.0),
    ("draft", 0.7),
    ("draft", 1.3),
    ("ngram", None),
]
TARGET = tiny_model(11, vocab_size=VOCAB, head_scale=0.35, max_len=MAX_LEN)


def requests(sampling: str, first_seed: int) -> list[Request]:
    """Requests with prompts of their own, and seeds that no other set has."""
    temperature, top_p = SAMPLINGS[sampling]
    return [
        request(
            random_prompt(i, 4 + i % 20, VOCAB),
            name=f"{i}",
            temperature=temperature,
            top_p=top_p,
            max_tokens=6 + i % 30,
            seed=first_seed + i,
        )
        for i in range(N)
    ]


@cache
def recorded(sampling: str) -> list[Trajectory]:
    """The answers that are replayed."""
    engine = tiny_engine(TARGET, slots=BATCH, eos_token_ids=EOS)
    return record(engine, requests(sampling, 1_000), batch_size=BATCH)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 5])
@pytest.mark.parametrize(("kind", "draft_temperature"), RUNS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_replay_agrees_with_the_engine(
    sampling: str, kind: str, draft_temperature: float | None, num_speculative_tokens: int
) -> None:
    """Same tokens per round, for every way of sampling target and draft."""
    engine = tiny_engine(TARGET, slots=BATCH, eos_token_ids=EOS)
    drafter = DRAFTERS[kind](engine)
    found = replay(
        profiles(
            drafter,
            recorded(sampling),
            max_drafts=5,
            max_len=MAX_LEN,
            draft_temperature=draft_temperature,
        ),
        num_speculative_tokens,
    )

    engine.load(drafter)
    counts = measured(
        engine,
        requests(sampling, 2_000_000),
        batch_size=BATCH,
        num_speculative_tokens=num_speculative_tokens,
        draft_temperature=draft_temperature,
    )

    counted, counted_error = tokens_per_round(counts)
    replayed_error = found.tokens_per_round_std_error
    assert replayed_error is not None
    error = hypot(replayed_error, counted_error)
    assert SIGMAS * error < 0.06 * counted
    assert abs(found.tokens_per_round - counted) < SIGMAS * error


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_acceptance_is_in_the_middle(sampling: str) -> None:
    """The draft is accepted often and rejected often, so that the comparison means something."""
    engine = tiny_engine(TARGET, slots=1)
    found = replay(
        profiles(DRAFTERS["draft"](engine), recorded(sampling), max_drafts=1, max_len=MAX_LEN), 1
    )

    first = float(found.num_accepted_per_pos.sum() / found.num_rounds_by_drafts[:, 1].sum())
    assert 0.3 < first < 0.9

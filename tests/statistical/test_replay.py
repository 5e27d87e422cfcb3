"""Replay of sampled requests against the engine's own counts, end to end.

Design, the same for every comparison here.
Null: tokens per round replayed on recorded answers and tokens per round that the engine counts on
other answers of the same requests have one expectation.
Test: |replayed - counted| < 4 standard errors of the difference (jackknife over requests on one
side, linearised ratio over requests on the other), n = 64 requests a side and sampling.
Level: 6.4e-5 for one comparison by the normal law, 0.0031 for the file (Bonferroni over 48).
Effect and power: 4 standard errors are below 15 % of the value everywhere, which is asserted, so a
difference of 27 % is missed at most once in a thousand comparisons. A temperature or a nucleus
applied to one side only is farther away, as the last test shows. Errors of the formula may be
smaller; those are excluded exactly in tests/property/test_replay_law.py.
Seeds: requests and models are seeded, so an outcome is the same at every run.
"""

from __future__ import annotations

from functools import cache
from math import hypot

import pytest

from engine.record import Trajectory, record
from engine.replay import Replay, replay
from engine.request import Request
from policies.types import VerificationRule
from tests.support.eagle3 import feature_layers
from tests.support.replaying import Counts, measured, profiles, tokens_per_round
from tests.support.tiny_models import DRAFTERS, random_prompt, request, tiny_engine, tiny_model

VOCAB = 10
MAX_LEN = 96
N = 64
SIGMAS = 4.0
EOS = (3,)
SAMPLINGS = {"T=0.7": (0.7, 1.0), "T=1": (1.0, 1.0), "T=1 top_p=0.8": (1.0, 0.8)}
RATIO, BLOCK = VerificationRule.RATIO, VerificationRule.BLOCK
RUNS: list[tuple[str, float | None, int, VerificationRule]] = [
    ("draft", None, 3, RATIO),
    ("draft", 0.0, 3, RATIO),
    ("draft", 0.7, 5, RATIO),
    ("draft", 1.3, 1, RATIO),
    ("ngram", None, 3, RATIO),
    *(("eagle3", None, k, RATIO) for k in (1, 2, 3, 4)),
    ("eagle3", 0.0, 3, RATIO),
    ("eagle3", 0.6, 4, RATIO),
    ("draft", None, 3, BLOCK),
    ("draft", 1.3, 5, BLOCK),
    ("ngram", None, 3, BLOCK),
    ("eagle3", None, 3, BLOCK),
    ("eagle3", 0.6, 4, BLOCK),
]
TARGET = tiny_model(12, num_layers=2, vocab_size=VOCAB, head_scale=0.35, max_len=MAX_LEN)


@cache
def requests(first_seed: int) -> list[Request]:
    """N requests of every sampling, mixed; no two sets share a seed."""
    return [
        request(
            random_prompt(i, 4 + i % 20, VOCAB),
            name=f"{name} {i}",
            temperature=temperature,
            top_p=top_p,
            max_tokens=40 + i % 8,
            seed=first_seed + 1_000 * order + i,
            # One in three may end early.
            ignore_eos=i % 3 > 0,
        )
        for i in range(N)
        for order, (name, (temperature, top_p)) in enumerate(SAMPLINGS.items())
    ]


def of(sampling: str) -> list[int]:
    """Rows of a sampling in a set."""
    order = list(SAMPLINGS).index(sampling)
    return list(range(order, len(SAMPLINGS) * N, len(SAMPLINGS)))


@cache
def recorded() -> list[Trajectory]:
    """The answers that are replayed."""
    engine = tiny_engine(TARGET, slots=len(SAMPLINGS) * N, eos_token_ids=EOS)
    return record(
        engine,
        requests(10_000),
        batch_size=len(SAMPLINGS) * N,
        feature_layers=feature_layers(TARGET),
    )


@cache
def replayed(
    kind: str,
    draft_temperature: float | None,
    num_speculative_tokens: int,
    rule: VerificationRule = RATIO,
) -> Replay:
    """Counts over all recorded answers."""
    drafter = DRAFTERS[kind](tiny_engine(TARGET, slots=1))
    found = profiles(
        drafter,
        recorded(),
        max_drafts=num_speculative_tokens,
        max_len=MAX_LEN,
        draft_temperature=draft_temperature,
    )
    return replay(found, num_speculative_tokens, rule)


@cache
def counted(
    kind: str, draft_temperature: float | None, k: int, rule: VerificationRule = RATIO
) -> list[Counts]:
    """The engine's own counts over other answers."""
    engine = tiny_engine(TARGET, slots=len(SAMPLINGS) * N, eos_token_ids=EOS)
    engine.load(DRAFTERS[kind](engine))
    return measured(
        engine,
        requests(2_000_000),
        batch_size=engine.cache.num_slots,
        num_speculative_tokens=k,
        draft_temperature=draft_temperature,
        rule=rule,
    )


def difference(found: Replay, counts: list[Counts]) -> tuple[float, float]:
    """Relative difference of tokens per round, and its standard error."""
    own, own_error = tokens_per_round(counts)
    replayed_error = found.tokens_per_round_std_error
    assert replayed_error is not None
    return found.tokens_per_round / own - 1, hypot(replayed_error, own_error) / own


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_replay_agrees_with_the_engine(
    run: tuple[str, float | None, int, VerificationRule],
) -> None:
    """Same tokens per round for three ways of sampling, mixed in one batch."""
    for sampling in SAMPLINGS:
        rows = of(sampling)
        found, error = difference(replayed(*run).select(rows), [counted(*run)[row] for row in rows])
        assert SIGMAS * error < 0.15
        assert abs(found) < SIGMAS * error, sampling


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_acceptance_is_in_the_middle(sampling: str, kind: str) -> None:
    """The draft is accepted often and rejected often, so that the comparison means something."""
    found = replayed(kind, None, 1).select(of(sampling))

    first = float(found.num_accepted_per_pos.sum() / found.num_rounds_by_drafts[:, 1].sum())
    assert 0.3 < first < 0.9


def test_a_draft_at_another_temperature_is_noticed() -> None:
    """Replay at the wrong draft temperature does not agree with the engine."""
    rows = of("T=1")
    counts = [counted("draft", None, 3)[row] for row in rows]

    found, error = difference(replayed("draft", 0.0, 3).select(rows), counts)

    assert abs(found) > SIGMAS * error

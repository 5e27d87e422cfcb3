"""The law of the engine's own output, end to end, against the law of plain forward passes.

Design, the same for every test of a law here.
Null: the first three output tokens have exactly the joint law that plain forward passes of the
target give, enumerated over all prefixes with processing in float64.
Test: Pearson's chi-square on that joint law, n = 800 outputs per law, outcomes with fewer than
five expected pooled; an outcome of probability 0 fails at once.
Level: 1e-6 for the whole file, Bonferroni over its laws.
Effect and power: a law at Cohen's w = 0.55 is noticed with probability 0.999 or more, asserted
below. The wrong rules in this file are much farther away.
Seeds: request i of a run has seed 10^6 * run + i; models are seeded too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from engine.drafters.base import Drafter
from engine.engine import Engine
from engine.model import Transformer
from engine.request import Sequence as Running
from policies.types import VerificationRule
from tests.support.block_mutants import BLOCK_MUTANTS
from tests.support.chi_square import p_value, power
from tests.support.mutants import MUTANTS, ArgmaxDraft, ReseededEachRound
from tests.support.reference import output_law
from tests.support.references import use_noise, use_references
from tests.support.tiny_models import (
    DRAFTERS,
    independent_draft,
    request,
    tiny_engine,
    tiny_model,
)

VOCAB = 8
PROMPT = (1, 2, 3, 1, 2)
NUM_TOKENS = 3
N = 800
EFFECT = 0.55


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a share of the requests of a run wants its tokens."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0


SAMPLINGS = (
    Sampling(0.7),
    Sampling(1.0),
    Sampling(1.0, top_p=0.8),
    Sampling(1.0, top_k=3),
)
MAKERS = {**DRAFTERS, "stranger": independent_draft}
RATIO, BLOCK = VerificationRule.RATIO, VerificationRule.BLOCK
RUNS: tuple[tuple[str, float | None, int, VerificationRule], ...] = (
    ("stranger", None, 3, RATIO),
    ("stranger", 0.0, 1, RATIO),
    ("stranger", 1.3, 1, RATIO),
    ("layer-skip", None, 1, RATIO),
    ("layer-skip", 0.0, 3, RATIO),
    ("ngram", None, 3, RATIO),
    ("eagle3", None, 1, RATIO),
    ("eagle3", None, 3, RATIO),
    ("eagle3", 0.0, 3, RATIO),
    ("eagle3", 1.3, 2, RATIO),
    ("stranger", None, 3, BLOCK),
    ("layer-skip", None, 2, BLOCK),
    ("layer-skip", 1.3, 4, BLOCK),
    ("layer-skip", 0.0, 3, BLOCK),
    ("eagle3", None, 3, BLOCK),
    ("ngram", None, 3, BLOCK),
)
ALPHA = 1e-6 / (len(RUNS) * len(SAMPLINGS))


@cache
def target() -> Transformer:
    """Three layers, a spread-out law."""
    return tiny_model(4, vocab_size=VOCAB, head_scale=0.4, max_len=16)


@cache
def law_of(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact joint law of the first tokens."""
    return output_law(
        target(),
        PROMPT,
        NUM_TOKENS,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
    )


def sample(
    make_drafter: Callable[[Engine], Drafter],
    samplings: Sequence[Sampling],
    *,
    run: int,
    num_speculative_tokens: int,
    draft_temperature: float | None,
    rule: VerificationRule = RATIO,
) -> list[list[tuple[int, ...]]]:
    """First tokens of N requests per sampling, all in one batch, rows of all samplings mixed.

    The prompt is prefilled once; every request goes on from its snapshot.
    """
    engine = tiny_engine(target(), slots=N * len(samplings))
    engine.load(make_drafter(engine))
    assert engine.drafter is not None
    engine.admit(0, request(PROMPT))
    snapshot, drafted = engine.cache.snapshot(0), engine.drafter.snapshot(0)
    engine.release(0)
    for slot in range(engine.cache.num_slots):
        sampling = samplings[slot % len(samplings)]
        asked = request(
            PROMPT,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=NUM_TOKENS + 4,  # far enough away not to shorten the drafts
            seed=1_000_000 * run + slot,
        )
        engine.resume(slot, Running(asked, list(PROMPT)), snapshot, drafted)
    outputs: list[list[tuple[int, ...]]] = [[] for _ in samplings]
    while engine.sequences:
        engine.round(num_speculative_tokens, draft_temperature, rule=rule)
        for slot in list(engine.sequences):
            if engine.sequences[slot].num_output_tokens >= NUM_TOKENS:
                tokens = engine.release(slot).output_tokens[:NUM_TOKENS]
                outputs[slot % len(samplings)].append(tuple(tokens))
    return outputs


@pytest.mark.parametrize("run", range(len(RUNS)), ids=[str(run) for run in RUNS])
def test_speculation_keeps_the_output_law(run: int) -> None:
    """Four kinds of sampling, mixed in one batch, each keep the target's joint law."""
    kind, draft_temperature, num_speculative_tokens, rule = RUNS[run]

    outputs = sample(
        MAKERS[kind],
        SAMPLINGS,
        run=run,
        num_speculative_tokens=num_speculative_tokens,
        draft_temperature=draft_temperature,
        rule=rule,
    )

    for sampling, tokens in zip(SAMPLINGS, outputs, strict=True):
        assert len(tokens) == N
        assert p_value(tokens, law_of(sampling)) > ALPHA, sampling


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_design_has_the_stated_power(sampling: Sampling) -> None:
    """A law at the stated distance is missed at most once in a thousand files."""
    assert power(law_of(sampling), N, alpha=ALPHA, effect=EFFECT) >= 0.999


def p_value_at_one(make_drafter: Callable[[Engine], Drafter], *, run: int) -> float:
    """Fit of a run at temperature 1 with K = 1, which brings a bonus or a recovery per token."""
    (outputs,) = sample(
        make_drafter,
        [Sampling(1.0)],
        run=run,
        num_speculative_tokens=1,
        draft_temperature=None,
    )
    return p_value(outputs, law_of(Sampling(1.0)))


@pytest.mark.parametrize(
    "name",
    [
        "every draft accepted",
        "softmax of the residual",
        "target in place of the residual",
        "bonus from the row before",
        "one uniform to reject and to recover",
    ],
)
def test_a_wrong_rule_in_the_engine_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above rejects the engine with a wrong verification rule in it."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    use_references(monkeypatch)
    monkeypatch.setattr("engine.verify_batch.verify_sampled", mutant.verify)

    assert p_value_at_one(independent_draft, run=100) < ALPHA


def test_an_argmax_draft_against_the_full_q_is_noticed() -> None:
    """The test above rejects drafts that were not drawn from the q they are verified against."""
    assert p_value_at_one(lambda engine: ArgmaxDraft(independent_draft(engine)), run=101) < ALPHA


def test_noise_reused_across_rounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above rejects a generator that starts anew in every round."""
    use_noise(monkeypatch, ReseededEachRound())

    assert p_value_at_one(independent_draft, run=102) < ALPHA


def p_value_of_block(*, run: int) -> float:
    """Fit of a run at temperature 1 with K = 3 under the block rule."""
    (outputs,) = sample(
        independent_draft,
        [Sampling(1.0)],
        run=run,
        num_speculative_tokens=3,
        draft_temperature=None,
        rule=BLOCK,
    )
    return p_value(outputs, law_of(Sampling(1.0)))


@pytest.mark.parametrize(
    "name",
    [
        "every position by its running product",
        "up to the first position that fails",
        "residual not renormalised",
        "target in place of the residual",
        "softmax of the residual",
    ],
)
def test_a_wrong_block_rule_in_the_engine_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above rejects the engine with a wrong block rule in it; subtler ones are excluded
    exactly in tests/property/test_block_exact.py.
    """
    (mutant,) = (mutant for mutant in BLOCK_MUTANTS if mutant.name == name)
    monkeypatch.setattr("engine.verify_batch.verify_block", mutant.verify)

    assert p_value_of_block(run=200) < ALPHA

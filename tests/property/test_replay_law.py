"""Replay has no bias: its mean over all answers is what speculation needs, in exact rationals.

The one side walks through the speculative process itself: rounds whose emitted tokens follow the
rule's law in `tests.support.laws` and `block_laws`. The other side enumerates every answer the
target can give, replays the drafter along it, and weights with the answer's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kv_cache import KvSnapshot
from engine.profile import StartProfile, profile_steps, profile_tokens
from engine.record import Trajectory
from engine.replay import replay
from engine.request import FinishReason
from policies.types import VerificationRule
from tests.support.block_laws import block_round_law
from tests.support.laws import (
    DELTA,
    RATIO,
    Chain,
    Drafting,
    Law,
    Tokens,
    dist,
    rule_round_law,
    table_chain,
)
from tests.support.tiny_models import request

END = 2
NUM_DECODED = 4  # at most; the end token comes earlier in many answers
TARGET = table_chain([dist(5, 2, 1), dist(1, 6, 2), dist(3, 3, 1), dist(2, 9, 1), dist(7, 1, 3)])
DRAFTS: dict[str, Chain] = {
    "close": table_chain(
        [dist(4, 2, 1), dist(1, 5, 3), dist(3, 2, 1), dist(2, 8, 2), dist(6, 2, 3)]
    ),
    "far": table_chain([dist(1, 1, 6), dist(6, 1, 2), dist(1, 3, 3)]),
    "itself": TARGET,
}
NO_CACHE = KvSnapshot(torch.empty(0), torch.empty(0))
RoundLaw = Callable[[Chain, Chain, Tokens, int, Drafting], Law]
RULES: dict[str, tuple[RoundLaw, Drafting, float | None, VerificationRule]] = {
    "ratio": (rule_round_law, RATIO, None, VerificationRule.RATIO),
    "block": (block_round_law, RATIO, None, VerificationRule.BLOCK),
    "delta": (rule_round_law, DELTA, 0.0, VerificationRule.RATIO),
    "delta, asked for block": (rule_round_law, DELTA, 0.0, VerificationRule.BLOCK),
}
"""Law of a round, drafts, draft temperature, and what replay is told."""


def forced_logits(chain: Chain, decoded: Tokens) -> Tensor:
    """[decoded, vocab], the logarithms of a chain's distributions along an answer."""
    return torch.tensor([[log(x) for x in chain(decoded[:i])] for i in range(len(decoded))])


def process(
    draft: Chain, drafting: Drafting, k: int, round_law: RoundLaw = rule_round_law
) -> tuple[Fraction, Fraction]:
    """Expected rounds and tokens of the speculative process, from its own rule."""

    def go(prefix: Tokens) -> tuple[Fraction, Fraction]:
        rounds, tokens = Fraction(1), Fraction(0)
        limit = min(k, NUM_DECODED - len(prefix) - 1)
        for emitted, weight in round_law(TARGET, draft, prefix, limit, drafting).items():
            taken = emitted[: emitted.index(END) + 1] if END in emitted else emitted
            tokens += weight * len(taken)
            if END not in taken and len(prefix) + len(taken) < NUM_DECODED:
                more = go(prefix + taken)
                rounds += weight * more[0]
                tokens += weight * more[1]
        return rounds, tokens

    return go(())


def answers(
    prefix: Tokens = (), weight: Fraction = Fraction(1)
) -> Iterator[tuple[Tokens, Fraction]]:
    """Every answer after the first token, with its probability."""
    if len(prefix) == NUM_DECODED or (prefix and prefix[-1] == END):
        yield prefix, weight
        return
    for token, p in enumerate(TARGET(prefix)):
        yield from answers((*prefix, token), weight * p)


def trajectory(decoded: Tokens) -> Trajectory:
    """An answer as the recorder writes it, sampled at temperature 1."""
    return Trajectory(
        request=request((0,), temperature=1.0, max_tokens=1 + NUM_DECODED),
        output_tokens=(0, *decoded),
        log_probs=tuple(log(TARGET(decoded[:i])[token]) for i, token in enumerate(decoded)),
        finish_reason=FinishReason.STOP if decoded[-1] == END else FinishReason.LENGTH,
        snapshot=NO_CACHE,
    )


def replayed(
    draft: Chain, draft_temperature: float | None, k: int, rule: VerificationRule
) -> tuple[float, float]:
    """Expected rounds and tokens by replay, over all answers."""
    every = list(answers())
    profiles = [
        profile_tokens(
            forced_logits(draft, decoded),
            trajectory(decoded),
            [draft_temperature],
            max_drafts=3,
            max_len=100,
        )[0]
        for decoded, _ in every
    ]
    found = replay(profiles, k, rule)
    weights = torch.tensor([float(weight) for _, weight in every], dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1)
    return float(weights @ found.num_rounds), float(weights @ found.num_tokens)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DRAFTS)
def test_the_mean_over_all_answers_is_the_process(name: str, rule: str, k: int) -> None:
    """Rounds and tokens, by every rule; deterministic drafts know only the delta rule."""
    round_law, drafting, temperature, told = RULES[rule]

    rounds, tokens = replayed(DRAFTS[name], temperature, k, told)

    wanted_rounds, wanted_tokens = process(DRAFTS[name], drafting, k, round_law)
    assert rounds == pytest.approx(float(wanted_rounds), rel=1e-6)
    assert tokens == pytest.approx(float(wanted_tokens), rel=1e-6)


def test_the_marginal_acceptance_would_be_noticed() -> None:
    """sum(min(p, q)), the chance before the answer is known, weights prefixes wrongly."""

    def expected_rounds(accept: Callable[[Tokens, int], float]) -> float:
        total = 0.0
        for decoded, weight in answers():
            n = len(decoded)
            rounds = [0.0] * (n + 4)
            for start in reversed(range(n)):
                limit = min(3, NUM_DECODED - start - 1)
                reach = [1.0]
                for j in range(limit):
                    inside = start + j < n
                    reach.append(reach[-1] * accept(decoded, start + j) if inside else 0.0)
                reach.append(0.0)
                rounds[start] = 1 + sum(
                    (reach[j] - reach[j + 1]) * rounds[start + j + 1] for j in range(limit + 1)
                )
            total += float(weight) * rounds[0]
        return total

    draft = DRAFTS["far"]

    def forced(decoded: Tokens, i: int) -> float:
        q, p = draft(decoded[:i]), TARGET(decoded[:i])
        return float(min(Fraction(1), q[decoded[i]] / p[decoded[i]]))

    def marginal(decoded: Tokens, i: int) -> float:
        return float(sum(map(min, draft(decoded[:i]), TARGET(decoded[:i]))))

    wanted = float(process(draft, RATIO, 3)[0])
    assert expected_rounds(forced) == pytest.approx(wanted, rel=1e-12)
    assert abs(expected_rounds(marginal) / wanted - 1) > 0.01


def test_the_ratio_rule_in_place_of_the_block_rule_would_be_noticed() -> None:
    """The two rules need a different number of rounds for the same drafts."""
    found = {rule: replayed(DRAFTS["far"], None, 3, rule)[0] for rule in VerificationRule}

    assert found[VerificationRule.BLOCK] < 0.99 * found[VerificationRule.RATIO]


def random_answer(seed: int, length: int) -> tuple[Trajectory, Tensor]:
    """An answer without an end token, and the logits of a drafter along it."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(length, 5, generator=generator), dim=-1)
    tokens = torch.multinomial(p, 1, generator=generator).flatten()
    answer = Trajectory(
        request=request((0,), temperature=1.0, max_tokens=1 + length + seed % 3),
        output_tokens=(0, *tokens.tolist()),
        log_probs=tuple(p[range(length), tokens].double().log().tolist()),
        finish_reason=FinishReason.LENGTH,
        snapshot=NO_CACHE,
    )
    return answer, p.log() + 1.5 * torch.randn(length, 5, generator=generator)


def profiled(seed: int, length: int, k_max: int) -> StartProfile:
    """A drafter whose distribution depends on the tokens alone."""
    answer, logits = random_answer(seed, length)
    (found,) = profile_tokens(logits, answer, [None], max_drafts=k_max, max_len=100)
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 12), k=st.integers(1, 8))
def test_no_answer_takes_more_rounds_by_the_block_rule(seed: int, length: int, k: int) -> None:
    """Tokens per round are at least the ratio rule's, for every answer and every K.

    By the ratio rule a later start never needs more rounds, as whether a draft passes depends on
    its position alone; and the block rule's rounds end later in distribution.
    """
    profile = profiled(seed, length, k_max=8)

    ratio = replay([profile], k, VerificationRule.RATIO)
    block = replay([profile], k, VerificationRule.BLOCK)

    assert block.tokens_per_round >= ratio.tokens_per_round * (1 - 1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 12))
def test_no_start_accepts_fewer_drafts_by_the_block_rule(seed: int, length: int) -> None:
    """W_t(j) is at least the ratio rule's; with one draft they are equal."""
    profile = profiled(seed, length, k_max=8)

    ratio = profile.survival_by(VerificationRule.RATIO)
    block = profile.survival_by(VerificationRule.BLOCK)

    assert bool((block >= ratio * (1 - 1e-12)).all())
    assert torch.equal(block[:, 0], ratio[:, 0])
    assert bool((block.diff(dim=1) <= 0).all())


def test_ratios_beyond_the_range_of_floats_do_no_harm() -> None:
    """A hundred drafts of which each is 10^5 times likelier than the target says."""
    length = 100
    answer = Trajectory(
        request=request((0,), temperature=1.0, max_tokens=1 + length),
        output_tokens=(0, *[1] * length),
        log_probs=(log(1e-5),) * length,
        finish_reason=FinishReason.LENGTH,
        snapshot=NO_CACHE,
    )
    logits = torch.tensor([[-torch.inf, 0.0]]).repeat(length, 1)
    logits[-2] = torch.tensor([0.0, -torch.inf])

    (profile,) = profile_tokens(logits, answer, [None], max_drafts=length, max_len=1000)

    for rule in VerificationRule:
        survival = profile.survival_by(rule)
        assert survival[0].tolist() == [1.0] * (length - 2) + [0.0] * 2
        assert not bool(survival.isnan().any())


def test_steps_and_tokens_agree_where_the_start_does_not_matter() -> None:
    """Both roads give one profile, under every rule."""
    answer, logits = random_answer(3, 9)

    (by_tokens,) = profile_tokens(logits, answer, [None], max_drafts=4, max_len=100)
    (by_steps,) = profile_steps(
        (logits[step:] for step in range(4)),
        torch.arange(5),
        answer,
        [None],
        max_drafts=4,
        max_len=100,
    )

    for rule in VerificationRule:
        torch.testing.assert_close(by_steps.survival_by(rule), by_tokens.survival_by(rule))
    assert torch.equal(by_steps.num_proposed, by_tokens.num_proposed)


@pytest.mark.parametrize("sizes", [(9,), (1, 8), (4, 4, 1)])
def test_blocks_of_logits_are_one_text(sizes: tuple[int, ...]) -> None:
    """Rows in pieces give the profile of the whole."""
    answer, logits = random_answer(5, 9)
    temperatures = (None, 0.0, 0.6)

    whole = profile_tokens(logits, answer, temperatures, max_drafts=4, max_len=100)
    pieces = profile_tokens(
        iter(logits.split(list(sizes))), answer, temperatures, max_drafts=4, max_len=100
    )

    for one, other in zip(whole, pieces, strict=True):
        for rule in VerificationRule:
            assert torch.equal(one.survival_by(rule), other.survival_by(rule))

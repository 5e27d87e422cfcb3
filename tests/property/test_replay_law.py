"""Replay has no bias: its mean over all answers is what speculation needs, in exact rationals.

The one side walks through the speculative process itself: rounds whose emitted tokens follow the
rule's law in `tests.support.laws`. The other side enumerates every answer the target can give,
replays the drafter along it, and weights with the answer's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import log

import pytest
import torch
from torch import Tensor

from engine.kv_cache import KvSnapshot
from engine.profile import profile_tokens
from engine.record import Trajectory
from engine.replay import replay
from engine.request import FinishReason
from tests.support.laws import (
    DELTA,
    RATIO,
    Chain,
    Drafting,
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


def forced_logits(chain: Chain, decoded: Tokens) -> Tensor:
    """[decoded, vocab], the logarithms of a chain's distributions along an answer."""
    return torch.tensor([[log(x) for x in chain(decoded[:i])] for i in range(len(decoded))])


def process(draft: Chain, drafting: Drafting, k: int) -> tuple[Fraction, Fraction]:
    """Expected rounds and tokens of the speculative process, from its own rule."""

    def go(prefix: Tokens) -> tuple[Fraction, Fraction]:
        rounds, tokens = Fraction(1), Fraction(0)
        limit = min(k, NUM_DECODED - len(prefix) - 1)
        for emitted, weight in rule_round_law(TARGET, draft, prefix, limit, drafting).items():
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


def replayed(draft: Chain, draft_temperature: float | None, k: int) -> tuple[float, float]:
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
    found = replay(profiles, k)
    weights = torch.tensor([float(weight) for _, weight in every], dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1)
    return float(weights @ found.num_rounds), float(weights @ found.num_tokens)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", ["ratio", "delta"])
@pytest.mark.parametrize("name", DRAFTS)
def test_the_mean_over_all_answers_is_the_process(name: str, rule: str, k: int) -> None:
    """Rounds and tokens, by the ratio rule and by the delta rule for greedy drafts."""
    drafting, temperature = (RATIO, None) if rule == "ratio" else (DELTA, 0.0)

    rounds, tokens = replayed(DRAFTS[name], temperature, k)

    wanted_rounds, wanted_tokens = process(DRAFTS[name], drafting, k)
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

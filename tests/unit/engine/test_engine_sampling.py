"""Sampled output of the engine: seeds, batch mates, fresh noise, and the edges of acceptance.

The law of the output is tested in tests/statistical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from engine.drafters.base import Proposal
from engine.request import Request
from engine.request import Sequence as Running
from engine.rng import Purpose, uniform
from policies.types import VerificationRule
from tests.support.reference import output_law, plain_logits
from tests.support.references import use_noise
from tests.support.scripted import StatelessDrafter
from tests.support.tiny_models import (
    DRAFTERS,
    answer,
    random_prompt,
    request,
    target_itself,
    tiny_engine,
    tiny_model,
)

TARGET = tiny_model(4, head_scale=0.4)
PROMPT = (1, 2, 3, 1, 2)

Uniform = Callable[[int, int, int, Purpose], float]


def run(
    asked: list[Request],
    kind: str,
    *,
    num_speculative_tokens: int = 3,
    seats: int = 64,
    rule: VerificationRule = VerificationRule.RATIO,
) -> dict[str, tuple[list[int], list[int]]]:
    """Request id -> (output, accepted drafts of each round), all requests in flight at once."""
    engine = tiny_engine(TARGET, slots=seats)
    engine.load(DRAFTERS[kind](engine))
    accepted: dict[int, list[int]] = {slot: [] for slot in range(len(asked))}
    for slot, one in enumerate(asked):
        engine.admit(slot, one)
    while outcomes := engine.round(num_speculative_tokens, rule=rule):
        for outcome in outcomes:
            accepted[outcome.slot].append(outcome.num_accepted)
    return {
        one.request_id: (engine.sequences[slot].output_tokens, accepted[slot])
        for slot, one in enumerate(asked)
    }


def mixed_requests(count: int, *, first_seed: int = 0) -> list[Request]:
    """Prompts, lengths, temperatures and truncations of all kinds."""
    kinds = [(1.0, 1.0, 0), (0.7, 1.0, 0), (1.0, 0.8, 0), (1.3, 1.0, 3), (0.0, 1.0, 0)]
    return [
        request(
            random_prompt(i, 1 + i % 13),
            name=str(i),
            temperature=kinds[i % 5][0],
            top_p=kinds[i % 5][1],
            top_k=kinds[i % 5][2],
            max_tokens=6 + i % 9,
            seed=first_seed + i,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("rule", VerificationRule)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_request_does_not_notice_its_batch(kind: str, rule: VerificationRule) -> None:
    """Among 64 and alone: the same tokens and the same accepted counts, round by round."""
    asked = mixed_requests(64)

    together = run(asked, kind, rule=rule)

    for one in asked[::10]:
        assert run([one], kind, seats=1, rule=rule)[one.request_id] == together[one.request_id]


def test_the_rule_decides_where_drafts_are_drawn() -> None:
    """Two rules make other rounds of sampled requests, and the same of all others."""
    asked = mixed_requests(60)
    sampled = {one.request_id for one in asked if not one.params.is_greedy}

    for kind, may_differ in (("draft", sampled), ("ngram", set[str]())):
        ratio, block = (run(asked, kind, rule=rule) for rule in VerificationRule)
        different = {name for name in ratio if ratio[name] != block[name]}
        assert different <= may_differ
        assert bool(different) is bool(may_differ)


def test_other_seeds_in_the_batch_change_nothing() -> None:
    """A request keeps its output when all of its mates get other seeds and prompts."""
    mates, others = mixed_requests(8), mixed_requests(8, first_seed=500)
    mine = request(PROMPT, name="mine", temperature=1.0, max_tokens=12, seed=7)

    assert run([mine, *mates], "draft")["mine"] == run([*others[::-1], mine], "draft")["mine"]


def test_the_seed_decides() -> None:
    """One seed, one output; other seeds, other outputs."""
    asked = [
        request(PROMPT, name=str(i), temperature=1.0, max_tokens=12, seed=i // 2) for i in range(40)
    ]

    found = run(asked, "draft")

    assert all(found[str(i)] == found[str(i + 1)] for i in range(0, 40, 2))
    assert len({tuple(tokens) for tokens, _ in found.values()}) == 20


@pytest.mark.parametrize("kind", ["draft", "ngram"])
def test_every_likely_token_is_sampled(kind: str) -> None:
    """Of 300 seeds at T = 1, each token above 3 % appears: first, and after a verification.

    A token of 3 % is absent from 300 outputs with probability 1.1e-4.
    """
    engine = tiny_engine(TARGET, slots=50)
    engine.load(DRAFTERS[kind](engine))
    law = output_law(TARGET, PROMPT, 2, temperature=1.0)

    sequences, _ = engine.generate(
        [request(PROMPT, temperature=1.0, max_tokens=4, seed=i) for i in range(300)],
        batch_size=50,
        num_speculative_tokens=2,
    )

    for position in range(2):
        marginal: defaultdict[int, float] = defaultdict(float)
        for tokens, p in law.items():
            marginal[tokens[position]] += p
        likely = {token for token, p in marginal.items() if p > 0.03}
        assert len(likely) > 5
        assert likely <= {s.output_tokens[position] for s in sequences}


class Recording:
    """Wraps a generator of uniforms and keeps what it gave."""

    def __init__(self, source: Uniform) -> None:
        self.values: list[float] = []
        self._source = source

    def __call__(self, seed: int, round_index: int, position: int, purpose: Purpose) -> float:
        """Stands in for `engine.rng.uniform`."""
        self.values.append(self._source(seed, round_index, position, purpose))
        return self.values[-1]


def without_round(seed: int, round_index: int, position: int, purpose: Purpose) -> float:
    """A wrong generator: a position drafted again gets the noise that was thrown away."""
    return uniform(seed, 0, position, purpose)


def times_used_again(source: Uniform, monkeypatch: pytest.MonkeyPatch) -> int:
    """Uniforms that a run draws more than once, rejections and drafts of 3 tokens included."""
    recording = Recording(source)
    use_noise(monkeypatch, recording)
    asked = request(PROMPT, temperature=1.0, max_tokens=40)
    accepted = run([asked], "draft", seats=1)["request"][1]
    assert {0, 3} <= set(accepted)
    return len(recording.values) - len(set(recording.values))


def test_no_uniform_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft, acceptance and emission, over all rounds and positions, prefill included."""
    assert times_used_again(uniform, monkeypatch) == 0


def test_noise_keyed_by_position_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails for a generator that leaves the round out of its key."""
    assert times_used_again(without_round, monkeypatch) > 0


@pytest.mark.parametrize("rule", VerificationRule)
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.7, 1.0, 0), (1.0, 1.0, 0), (1.0, 0.8, 0), (1.0, 1.0, 3)]
)
def test_a_draft_that_is_the_target_accepts_everything(
    temperature: float, top_p: float, top_k: int, rule: VerificationRule
) -> None:
    """With q = p no sampled draft is rejected, truncated distributions included."""
    engine = tiny_engine(TARGET)
    engine.load(target_itself(engine))

    _, counters = engine.generate(
        [
            request(
                PROMPT, temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=41, seed=i
            )
            for i in range(8)
        ],
        batch_size=8,
        num_speculative_tokens=4,
        rule=rule,
    )

    assert counters.draft_acceptance_rate == 1.0


class LeastLikelyDrafter(StatelessDrafter):
    """Drafts what the target finds least likely, with certainty."""

    def __init__(self, *, with_probs: bool) -> None:
        self._with_probs = with_probs

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """One wrong token after the other."""
        drafts: list[list[int]] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            tokens = list(sequence.tokens)
            for _ in range(limit):
                tokens.append(int(plain_logits(TARGET, [tuple(tokens)])[0].argmin()))
            drafts.append(tokens[len(sequence.tokens) :])
        probs = torch.zeros(len(slots), max(limits), TARGET.config.vocab_size)
        for row, draft in enumerate(drafts):
            for i, token in enumerate(draft):
                probs[row, i, token] = 1.0
        return Proposal(drafts, probs if self._with_probs else None)


@pytest.mark.parametrize("with_probs", [True, False])
def test_an_always_wrong_draft_is_never_accepted(with_probs: bool) -> None:
    """Tokens outside the target's top 3 have probability 0: none gets through at T = 1."""
    engine = tiny_engine(TARGET)
    engine.load(LeastLikelyDrafter(with_probs=with_probs))

    sequences, counters = engine.generate(
        [request(PROMPT, temperature=1.0, top_k=3, max_tokens=10, seed=i) for i in range(8)],
        batch_size=8,
        num_speculative_tokens=3,
    )

    assert counters.num_draft_tokens > 100
    assert counters.num_accepted_tokens == 0
    assert [len(s.output_tokens) for s in sequences] == [10] * 8


def test_a_forced_rejection_without_residual_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot target, equal draft, and a uniform of 1 that rejects: the target's token comes."""

    def rejecting(seed: int, round_index: int, position: int, purpose: Purpose) -> float:
        return 1.0 if purpose == Purpose.ACCEPT else uniform(seed, round_index, position, purpose)

    use_noise(monkeypatch, rejecting)
    engine = tiny_engine(TARGET)
    engine.load(target_itself(engine))

    sequences, counters = engine.generate(
        [request(PROMPT, temperature=1.0, top_k=1, max_tokens=10)],
        batch_size=1,
        num_speculative_tokens=3,
    )

    assert sequences[0].output_tokens == answer(tiny_engine(TARGET, slots=1), PROMPT, 10)
    assert counters.num_accepted_tokens == 0
    assert engine.num_fallbacks == counters.num_drafts == 8
    assert counters.draft_acceptance_rate == 0.0

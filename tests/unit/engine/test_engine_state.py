"""What a round leaves behind: caches, and sequences that go on elsewhere."""

from __future__ import annotations

import copy

import pytest
import torch

from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.engine import Engine
from engine.kv_cache import KvCache, KvSnapshot
from engine.layout import make_layout
from engine.model import Transformer
from engine.request import Sequence
from tests.support.tiny_models import (
    DRAFTERS,
    random_prompt,
    request,
    target_itself,
    tiny_engine,
    tiny_model,
)

TARGET = tiny_model(7, head_scale=0.4)
PROMPTS = [random_prompt(1, 1), random_prompt(2, 11), (4, 8, 1, 4, 8, 1, 4)]


def running(kind: str, temperature: float) -> Engine:
    """An engine with three requests in scattered slots."""
    engine = tiny_engine(TARGET, slots=6)
    engine.load(DRAFTERS[kind](engine))
    for i, prompt in enumerate(PROMPTS):
        engine.admit(2 * i, request(prompt, temperature=temperature, max_tokens=60, seed=i))
    return engine


def recomputed(model: Transformer, tokens: list[int]) -> KvSnapshot:
    """Keys and values of one whole prefill."""
    cache = KvCache.allocate(model.config, 1, len(tokens), model.dtype, model.device)
    layout = make_layout([0], [0], [len(tokens)], device=model.device)
    with torch.inference_mode():
        model.forward(torch.tensor(tokens), layout, cache)
    cache.lengths[0] = len(tokens)
    return cache.snapshot(0)


def assert_holds(cache: KvCache, slot: int, model: Transformer, tokens: list[int]) -> None:
    """A slot's committed part is what a prefill of its tokens computes."""
    found = cache.snapshot(slot)
    expected = recomputed(model, tokens[: found.num_tokens])
    torch.testing.assert_close(found.keys, expected.keys, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_caches_hold_what_a_prefill_would_compute(kind: str, temperature: float) -> None:
    """After every round, of every K: the target's cache, and the draft's as far as it claims."""
    engine = running(kind, temperature)
    for num_speculative_tokens in (4, 1, 0, 3, 0, 0, 5, 8):
        for outcome in engine.round(num_speculative_tokens):
            slot, sequence = outcome.slot, engine.sequences[outcome.slot]
            newest = len(sequence.tokens) - 1
            assert engine.cache.lengths[slot] == newest
            assert_holds(engine.cache, slot, TARGET, sequence.tokens)
            drafter = engine.drafter
            if isinstance(drafter, ModelDrafter) and not isinstance(drafter, LayerSkipDrafter):
                assert drafter.cache.lengths[slot] <= newest
                assert_holds(drafter.cache, slot, drafter.model, sequence.tokens)
                if outcome.num_drafted:
                    # Only a last draft token that was accepted is still to be processed.
                    behind = outcome.num_accepted == outcome.num_drafted
                    assert drafter.cache.lengths[slot] == newest - behind
    assert all(count == 0 for slot, count in enumerate(engine.cache.lengths) if slot % 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("kind", "with_draft_snapshot"),
    [(kind, True) for kind in DRAFTERS]
    # A head needs the target's states; its own tests show that it refuses to go without.
    + [(kind, False) for kind in DRAFTERS if kind != "eagle3"],
)
def test_a_sequence_goes_on_elsewhere_as_if_nothing_had_happened(
    kind: str, temperature: float, with_draft_snapshot: bool
) -> None:
    """Interrupted after any of the first rounds and resumed in another engine and slot."""
    whole = running(kind, temperature)
    trace = [whole.round(3) for _ in range(6)]
    expected = {slot: sequence.tokens for slot, sequence in whole.sequences.items()}

    for num_rounds in (0, 1, 3):
        first = running(kind, temperature)
        for _ in range(num_rounds):
            first.round(3)
        second = tiny_engine(TARGET, slots=6)
        second.load(DRAFTERS[kind](second))
        assert first.drafter is not None
        for slot in (0, 2, 4):
            drafted = first.drafter.snapshot(slot) if with_draft_snapshot else None
            snapshot = first.cache.snapshot(slot)
            second.resume(5 - slot, first.release(slot), snapshot, drafted)
        for done in range(num_rounds, 6):
            outcomes = {5 - outcome.slot: outcome for outcome in second.round(3)}
            assert [(o.num_drafted, o.num_accepted, o.num_emitted) for o in trace[done]] == [
                (outcomes[s].num_drafted, outcomes[s].num_accepted, outcomes[s].num_emitted)
                for s in (0, 2, 4)
            ]
        assert {5 - slot: s.tokens for slot, s in second.sequences.items()} == expected


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_later_snapshot_serves_an_earlier_state(kind: str) -> None:
    """A state is resumed from snapshots of the same sequence that were made rounds later."""
    engine = running(kind, 1.0)
    engine.round(3)
    earlier = copy.deepcopy(engine.sequences[2])
    for _ in range(4):
        engine.round(3)
    assert engine.drafter is not None
    snapshot, drafted = engine.cache.snapshot(2), engine.drafter.snapshot(2)
    later = engine.release(2)

    engine.resume(1, earlier, snapshot, drafted)
    for _ in range(4):
        engine.round(3)

    assert engine.sequences[1].tokens == later.tokens


def test_a_sequence_may_be_resumed_many_times() -> None:
    """One snapshot starts any number of slots, each with its own randomness."""
    engine = tiny_engine(TARGET, slots=4)
    engine.load(target_itself(engine))
    engine.admit(0, request(PROMPTS[1], temperature=1.0, max_tokens=20, seed=3))
    assert engine.drafter is not None
    snapshot, drafted = engine.cache.snapshot(0), engine.drafter.snapshot(0)
    first = copy.deepcopy(engine.sequences[0])
    for slot, seed in ((1, 3), (2, 4), (3, 5)):
        asked = request(PROMPTS[1], temperature=1.0, max_tokens=20, seed=seed)
        engine.resume(slot, Sequence(asked, list(first.tokens)), snapshot, drafted)
    while engine.round(3):
        pass

    outputs = [engine.sequences[slot].output_tokens for slot in range(4)]
    assert outputs[0] == outputs[1]
    assert len({tuple(tokens) for tokens in outputs}) == 3

"""Drafting with a model: what is drafted, what it was drawn from, and vocabularies that differ."""

from __future__ import annotations

import pytest
import torch

from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.request import Sequence
from tests.support.reference import plain_logits, reference_probs
from tests.support.tiny_models import (
    answer,
    layer_skip,
    model_drafter,
    random_prompt,
    request,
    tiny_engine,
    tiny_model,
)

TARGET = tiny_model(7)
DRAFT = tiny_model(9, num_layers=2, head_scale=0.4)
PROMPTS = [random_prompt(i, length) for i, length in enumerate((1, 6, 13))]


def admitted(temperatures: list[float], model: Transformer = DRAFT) -> tuple[Engine, ModelDrafter]:
    """Three requests that have their first token, in slots 0 to 2, and their drafter."""
    engine = tiny_engine(TARGET, slots=3)
    drafter = model_drafter(engine, model)
    engine.load(drafter)
    for slot, (prompt, temperature) in enumerate(zip(PROMPTS, temperatures, strict=True)):
        engine.admit(
            slot, request(prompt, temperature=temperature, top_k=5, seed=slot, max_tokens=40)
        )
    return engine, drafter


def rows(engine: Engine) -> list[Sequence]:
    """The sequences in slot order."""
    return [engine.sequences[slot] for slot in range(3)]


@pytest.mark.parametrize("draft_temperature", [None, 0.0, 0.6])
def test_q_is_what_the_tokens_were_drawn_from(draft_temperature: float | None) -> None:
    """Every recorded distribution is the draft's own, processed, after the tokens before it."""
    temperatures = [1.0, 0.8, 0.0]
    engine, drafter = admitted(temperatures)

    proposal = drafter.propose([0, 1, 2], rows(engine), [4, 4, 4], draft_temperature)

    if draft_temperature == 0.0:
        assert proposal.probs is None
    else:
        assert proposal.probs is not None
    for row, sequence in enumerate(rows(engine)):
        used = temperatures[row] if draft_temperature is None else draft_temperature
        used = 0.0 if sequence.request.params.is_greedy else used
        for i, token in enumerate(proposal.tokens[row]):
            before = (*sequence.tokens, *proposal.tokens[row][:i])
            q = reference_probs(plain_logits(DRAFT, [before])[0].double().tolist(), used, 5)
            assert q[token] > 0
            if proposal.probs is None:
                assert q[token] == 1.0
            else:
                assert proposal.probs[row, i].tolist() == pytest.approx(q, abs=1e-4)


def test_limits_are_exact_row_by_row() -> None:
    """Rows draft as many tokens as they may, none included; the others are not disturbed."""
    engine, drafter = admitted([1.0, 1.0, 1.0])
    whole = drafter.propose([0, 1, 2], rows(engine), [3, 3, 3], None)
    engine, drafter = admitted([1.0, 1.0, 1.0])

    proposal = drafter.propose([0, 1, 2], rows(engine), [3, 0, 1], None)

    assert proposal.tokens == [whole.tokens[0], [], whole.tokens[2][:1]]


def test_sequences_are_not_modified() -> None:
    """Drafting reads the state of the requests and leaves it."""
    engine, drafter = admitted([1.0, 0.0, 0.5])
    before = [list(sequence.tokens) for sequence in rows(engine)]

    drafter.propose([0, 1, 2], rows(engine), [5, 5, 5], None)

    assert [sequence.tokens for sequence in rows(engine)] == before


@pytest.mark.parametrize(
    ("draft_vocab", "shared"), [(9, 9), (12, 12), (12, 10), (20, 10), (20, 12)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_shared_ids_are_drafted(temperature: float, draft_vocab: int, shared: int) -> None:
    """Drafts with more rows or fewer than the target propose ids that both know."""
    engine = tiny_engine(TARGET, slots=3)
    drafter = drafter_over(engine, draft_vocab, shared)
    engine.load(drafter)
    for slot, prompt in enumerate(PROMPTS):
        engine.admit(slot, request(prompt, temperature=temperature, max_tokens=40))

    proposal = drafter.propose([0, 1, 2], rows(engine), [6, 6, 6], None)

    assert all(0 <= token < shared for draft in proposal.tokens for token in draft)
    if temperature:
        assert proposal.probs is not None
        assert proposal.probs.shape == (3, 6, 12)
        assert not proposal.probs[:, :, shared:].any()


@pytest.mark.parametrize(("draft_vocab", "shared"), [(9, 9), (20, 10)])
def test_output_with_ids_that_the_draft_does_not_know_is_plain(
    draft_vocab: int, shared: int
) -> None:
    """Prompts and answers may hold ids beyond the draft's embedding; greedy output is kept."""
    engine = tiny_engine(TARGET, slots=3)
    engine.load(drafter_over(engine, draft_vocab, shared))
    prompts = [(11, 2), (3,), (10, 9, 11, 8)]

    sequences, _ = engine.generate(
        [request(prompt, max_tokens=30) for prompt in prompts],
        batch_size=3,
        num_speculative_tokens=3,
    )

    assert max(max(s.output_tokens) for s in sequences) >= 9
    assert [s.output_tokens for s in sequences] == [
        answer(tiny_engine(TARGET, slots=1), prompt, 30) for prompt in prompts
    ]


def drafter_over(engine: Engine, draft_vocab: int, shared: int) -> ModelDrafter:
    """A one-layer draft with a vocabulary of its own size."""
    model = tiny_model(9, num_layers=1, vocab_size=draft_vocab)
    return ModelDrafter(
        "draft",
        model,
        KvCache.allocate(model.config, 3, engine.max_len, model.dtype, model.device),
        target_vocab_size=12,
        shared_vocab_size=shared,
        num_weight_bytes=0,
    )


def test_bytes_count_weights_and_cache() -> None:
    """Both caches' worth of keys and values, and the weights that only the drafter needs."""
    engine = tiny_engine(TARGET, slots=3, max_len=100)
    drafter = ModelDrafter(
        "draft",
        DRAFT,
        KvCache.allocate(DRAFT.config, 3, 100, torch.float32, DRAFT.device),
        target_vocab_size=12,
        shared_vocab_size=12,
        num_weight_bytes=1000,
    )

    assert drafter.num_bytes == 1000 + 300 * KvCache.bytes_per_token(DRAFT.config, torch.float32)
    assert layer_skip(engine).num_bytes == 0


def test_teacher_forcing_gives_the_logits_after_every_true_token() -> None:
    """All output tokens but the first, each after the true tokens before it."""
    engine = tiny_engine(TARGET, slots=1)
    drafter = model_drafter(engine, DRAFT)
    output = tuple(answer(tiny_engine(TARGET, slots=1), PROMPTS[1], 9))

    logits = drafter.teacher_forced_logits(PROMPTS[1], output)

    assert logits.shape == (8, 12)
    for i in range(8):
        expected = plain_logits(DRAFT, [PROMPTS[1] + output[: i + 1]])[0]
        torch.testing.assert_close(logits[i], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 2, 5, 6, 13])
def test_teacher_forcing_in_pieces_is_one_pass(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the answer follow one another, wherever the prompt ends within a piece."""
    drafter = model_drafter(tiny_engine(TARGET, slots=1), DRAFT)
    output = tuple(answer(tiny_engine(TARGET, slots=1), PROMPTS[1], 9))
    whole = drafter.teacher_forced_logits(PROMPTS[1], output)
    monkeypatch.setattr("engine.drafters.model._CHUNK", chunk)

    blocks = list(drafter.forced_blocks(PROMPTS[1], output))

    assert all(0 < block.shape[0] <= chunk for block in blocks)
    torch.testing.assert_close(torch.cat(blocks), whole, rtol=0, atol=1e-5)
    snapshot = drafter.snapshot(0)
    assert snapshot is not None
    assert snapshot.kv.num_tokens == len(PROMPTS[1]) + len(output) - 1


@pytest.mark.parametrize("num_layers", [1, 2])
def test_layer_skip_drafts_as_a_model_of_its_own_would(num_layers: int) -> None:
    """In the target's cache it proposes what the cut model with a cache of its own proposes."""
    engine = tiny_engine(TARGET, slots=3)
    shared = LayerSkipDrafter("layer-skip", TARGET, engine.cache, num_layers)
    own = model_drafter(engine, TARGET.first_layers(num_layers))
    for slot, prompt in enumerate(PROMPTS):
        engine.admit(slot, request(prompt, temperature=0.9, seed=slot, max_tokens=40))
        own.admit(slot, engine.sequences[slot], torch.empty(len(prompt), 0))

    for _ in range(4):
        mine = shared.propose([0, 1, 2], rows(engine), [4, 2, 3], None)
        its = own.propose([0, 1, 2], rows(engine), [4, 2, 3], None)
        assert mine.tokens == its.tokens
        engine.round(0)
        for slot in range(3):
            own.ingest(slot, engine.sequences[slot], torch.empty(1, 0))


def test_layer_skip_leaves_the_lengths_to_the_target() -> None:
    """Drafting alone commits nothing."""
    engine = tiny_engine(TARGET, slots=3)
    drafter = layer_skip(engine)
    engine.load(drafter)
    engine.admit(1, request(PROMPTS[1]))
    before = list(engine.cache.lengths)

    drafter.propose([1], [engine.sequences[1]], [5], None)

    assert engine.cache.lengths == before


def test_teacher_forcing_on_the_targets_own_keys_changes_nothing() -> None:
    """A layer-skip drafter takes the prompt's keys and values from the target's snapshot."""
    engine = tiny_engine(TARGET, slots=1)
    output = tuple(answer(engine, PROMPTS[1], 9))
    drafter = layer_skip(engine)
    without = drafter.teacher_forced_logits(PROMPTS[1], output)
    engine.admit(0, request(PROMPTS[1], max_tokens=2))
    snapshot = engine.cache.snapshot(0)
    engine.release(0)
    engine.cache.keys.zero_()
    engine.cache.values.zero_()

    logits = drafter.teacher_forced_logits(PROMPTS[1], output, snapshot)

    torch.testing.assert_close(logits, without, rtol=0, atol=1e-5)

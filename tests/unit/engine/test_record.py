"""Recording: the answers, their probabilities, and states to go on from."""

from __future__ import annotations

from math import exp

import pytest
import torch

from engine.drafters.base import Drafter
from engine.drafters.recorder import StateRecorder
from engine.engine import Engine
from engine.errors import EngineError
from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.record import TargetFeatures, Trajectory, logged_trajectory, record
from engine.request import FinishReason, Request, Sequence
from tests.support.reference import plain_logits, reference_probs
from tests.support.tiny_models import (
    DRAFTERS,
    answer,
    random_prompt,
    request,
    tiny_engine,
    tiny_model,
)

TARGET = tiny_model(7)
EOS = (5,)


def engine_of(slots: int = 3) -> Engine:
    """An engine with end tokens."""
    return tiny_engine(TARGET, slots=slots, max_len=64, eos_token_ids=EOS)


def mixed() -> list[Request]:
    """Greedy and sampled requests, one of a single token."""
    return [
        request(random_prompt(1, 5), name="greedy", max_tokens=12),
        request(random_prompt(2, 9), name="warm", temperature=0.8, max_tokens=12, seed=1),
        request(random_prompt(3, 4), name="one", temperature=1.0, max_tokens=1, seed=2),
        request(random_prompt(4, 7), name="cut", temperature=1.2, top_k=4, max_tokens=9, seed=3),
        request(
            random_prompt(5, 6), name="nucleus", temperature=1.0, top_p=0.7, max_tokens=12, seed=4
        ),
    ]


def test_answers_are_those_of_plain_decoding() -> None:
    """Batched, in the order of the requests."""
    recorded = record(engine_of(), mixed(), batch_size=3)

    sequences, _ = engine_of(slots=1).generate(mixed(), batch_size=1)
    assert [t.request.request_id for t in recorded] == [r.request_id for r in mixed()]
    assert [list(t.output_tokens) for t in recorded] == [s.output_tokens for s in sequences]
    assert [t.finish_reason for t in recorded] == [s.finish_reason for s in sequences]
    assert {t.finish_reason for t in recorded} == {FinishReason.STOP, FinishReason.LENGTH}


def test_log_probs_are_of_the_processed_distribution() -> None:
    """One for every token but the first, after temperature, top-k and top-p; 0 when greedy."""
    for trajectory in record(engine_of(), mixed(), batch_size=3):
        params = trajectory.request.params
        assert len(trajectory.log_probs) == trajectory.num_decoded
        for i, log_prob in enumerate(trajectory.log_probs, start=1):
            before = (*trajectory.request.prompt_tokens, *trajectory.output_tokens[:i])
            wanted = reference_probs(
                plain_logits(TARGET, [before])[0].double().tolist(),
                params.temperature,
                params.top_k,
                params.top_p,
            )[trajectory.output_tokens[i]]
            assert exp(log_prob) == pytest.approx(wanted, rel=1e-4)


def test_snapshots_hold_all_but_the_newest_token() -> None:
    """Prompt and output, for answers that end at once too."""
    for trajectory in record(engine_of(), mixed(), batch_size=2):
        length = len(trajectory.request.prompt_tokens) + len(trajectory.output_tokens)
        assert trajectory.snapshot.num_tokens == length - 1


@pytest.mark.parametrize("position", [1, 4, 11])
def test_an_answer_goes_on_from_any_point(position: int) -> None:
    """From the snapshot, without a prefill, the greedy answer is the same."""
    engine = tiny_engine(TARGET, slots=2)
    asked = request(random_prompt(8, 6), max_tokens=12, ignore_eos=True)
    (trajectory,) = record(engine, [asked], batch_size=1)

    engine.resume(1, trajectory.resume_at(position), trajectory.snapshot, None)
    while engine.sequences[1].finish_reason is None:
        engine.round()

    assert engine.release(1).output_tokens == list(trajectory.output_tokens)
    assert list(trajectory.output_tokens) == answer(engine, asked.prompt_tokens, 12)


def test_a_state_may_belong_to_another_request() -> None:
    """The seed of a measurement replaces the recorded one; the tokens stay."""
    (trajectory,) = record(engine_of(), mixed()[1:2], batch_size=1)
    other = request(trajectory.request.prompt_tokens, name="other", temperature=0.8, seed=99)

    state = trajectory.resume_at(2, other)

    assert state.request is other
    assert state.output_tokens == list(trajectory.output_tokens[:2])
    assert state.finish_reason is None
    assert trajectory.resume_at(2).request is trajectory.request


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_loaded_drafter_changes_nothing(kind: str) -> None:
    """Recording never speculates."""
    engine = engine_of()
    drafter: Drafter = DRAFTERS[kind](engine)
    engine.load(drafter)

    def refuse(*args: object) -> object:
        raise AssertionError("drafted while recording")

    drafter.propose = refuse  # type: ignore[method-assign, assignment]

    with_drafter = record(engine, mixed(), batch_size=3)

    plain = record(engine_of(), mixed(), batch_size=3)
    assert [tokens_of(t) for t in with_drafter] == [tokens_of(t) for t in plain]


def tokens_of(trajectory: Trajectory) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """What replay uses of a trajectory."""
    return trajectory.output_tokens, trajectory.log_probs


def test_progress_adds_up_to_the_decoded_tokens() -> None:
    """Every round reports its tokens; the first ones come from prefill."""
    told: list[int] = []

    recorded = record(engine_of(), mixed(), batch_size=2, on_tokens=told.append)

    assert sum(told) == sum(t.num_decoded for t in recorded)


def test_the_engine_is_idle_afterwards() -> None:
    """Slots are free, and the trajectories are not touched by what comes later."""
    engine = engine_of()
    recorded = record(engine, mixed(), batch_size=3)
    before = recorded[0].snapshot.keys.clone()

    record(engine, mixed()[::-1], batch_size=3)

    assert engine.sequences == {}
    assert torch.equal(recorded[0].snapshot.keys, before)


# ---------------------------------------------------------------- states of the target

LAYERS = (0, 2, 3)


def fresh_states(engine: Engine, tokens: list[int], layers: tuple[int, ...]) -> torch.Tensor:
    """[tokens, width], by one pass over a whole text."""
    model = engine.target
    cache = KvCache.allocate(model.config, 1, len(tokens), model.dtype, model.device)
    layout = make_layout([0], [0], [len(tokens)], device=model.device)
    with torch.inference_mode():
        return model.forward_with_features(torch.tensor(tokens), layout, cache, layers)[1]


def test_recorded_states_are_those_of_one_pass_over_the_text() -> None:
    """At every token but the newest, for answers that end in any way, in a mixed batch."""
    engine = engine_of()

    recorded = record(engine, mixed(), batch_size=3, feature_layers=LAYERS)

    for trajectory in recorded:
        text = [*trajectory.request.prompt_tokens, *trajectory.output_tokens[:-1]]
        wanted = fresh_states(engine, text, LAYERS)
        torch.testing.assert_close(trajectory.features_of(LAYERS), wanted, rtol=1e-5, atol=1e-5)
        assert trajectory.snapshot.num_tokens == len(text)


@pytest.mark.parametrize("prompt_length", [511, 512, 513, 1100])
def test_states_of_prompts_longer_than_a_prefill_chunk(prompt_length: int) -> None:
    """Pieces of the prompt are put together in order, up to the first decoded token."""
    engine = tiny_engine(tiny_model(7, max_len=1200), slots=1)
    asked = request(random_prompt(1, prompt_length), max_tokens=4, ignore_eos=True)

    (trajectory,) = record(engine, [asked], batch_size=1, feature_layers=LAYERS)

    text = [*asked.prompt_tokens, *trajectory.output_tokens[:-1]]
    torch.testing.assert_close(
        trajectory.features_of(LAYERS),
        fresh_states(engine, text, LAYERS),
        rtol=1e-5,
        atol=1e-5,
    )


def test_recording_states_changes_no_answer() -> None:
    """Tokens, probabilities and ends are those of a recording without states."""
    with_states = record(engine_of(), mixed(), batch_size=3, feature_layers=LAYERS)

    plain = record(engine_of(), mixed(), batch_size=3)
    assert [tokens_of(t) for t in with_states] == [tokens_of(t) for t in plain]
    assert [t.finish_reason for t in with_states] == [t.finish_reason for t in plain]
    assert all(t.features is None for t in plain)


def test_states_of_some_layers_are_picked_out() -> None:
    """In the order asked for; what was not kept is refused with its number."""
    states = torch.arange(24.0).reshape(2, 12)
    features = TargetFeatures((1, 4, 6), states)

    assert features.select((1, 4, 6)) is states
    assert features.select((4,)).tolist() == [[4, 5, 6, 7], [16, 17, 18, 19]]
    assert features.select((1, 6)).tolist() == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [12, 13, 14, 15, 20, 21, 22, 23],
    ]
    with pytest.raises(EngineError, match="layer 5 were not recorded"):
        features.select((1, 5, 9))


def test_an_answer_without_states_says_so() -> None:
    """Nothing was asked for, so nothing is there."""
    (trajectory,) = record(engine_of(), mixed()[:1], batch_size=1)

    with pytest.raises(EngineError, match="no states of the target were recorded"):
        trajectory.features_of((1,))


@pytest.mark.parametrize("k", [0, 3])
def test_a_recorder_never_drafts(k: int) -> None:
    """With any K its rounds are plain ones."""
    engine = engine_of()
    engine.load(StateRecorder((1,)))

    sequences, counters = engine.generate(mixed(), batch_size=3, num_speculative_tokens=k)

    plain, _ = engine_of().generate(mixed(), batch_size=3)
    assert [s.output_tokens for s in sequences] == [s.output_tokens for s in plain]
    assert counters.num_draft_tokens == 0


def test_a_recorder_forgets_a_request_that_is_taken() -> None:
    """The next request in the slot starts with its own prompt."""
    recorder = StateRecorder((1,))
    first, second = torch.ones(3, 2), torch.full((2, 2), 5.0)
    state = Sequence(request((1, 2, 3)), [1, 2, 3, 4])

    recorder.admit(0, state, first)
    recorder.ingest(0, state, second)
    assert torch.equal(recorder.take(0), torch.cat((first, second)))
    recorder.admit(0, state, second)

    assert torch.equal(recorder.take(0), second)
    assert recorder.snapshot(0) is None


def test_an_answer_of_another_engine_has_tokens_alone() -> None:
    """Nothing of the target's states; every token but the first has its log-probability."""
    asked = request((1, 2), temperature=1.0)

    found = logged_trajectory(asked, (3, 4, 5), (-0.5, -1.0), FinishReason.STOP)

    assert (found.output_tokens, found.log_probs) == ((3, 4, 5), (-0.5, -1.0))
    assert found.num_decoded == 2
    assert found.num_bytes == 0
    with pytest.raises(EngineError, match="no states"):
        found.features_of((1,))
    with pytest.raises(EngineError, match="3 output tokens and 3 log-probabilities"):
        logged_trajectory(asked, (3, 4, 5), (-0.5, -1.0, 0.0), FinishReason.STOP)

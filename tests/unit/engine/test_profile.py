"""Profiles: what a drafter achieves from every start, by each of the three roads."""

from __future__ import annotations

from functools import cache
from math import exp, prod

import pytest
import torch

from engine.drafters.model import ModelDrafter
from engine.engine import Engine
from engine.errors import NumericError
from engine.model import Transformer
from engine.profile import StartProfile, profile_rollouts, profile_steps, profile_tokens
from engine.record import Trajectory, record
from engine.request import Request
from policies.types import VerificationRule
from tests.support.reference import plain_logits, reference_probs
from tests.support.replaying import model_profiles, profiles
from tests.support.tiny_models import (
    DRAFTERS,
    answer,
    model_drafter,
    random_prompt,
    request,
    tiny_engine,
    tiny_model,
)

MAX_LEN = 64
VOCAB = 12
TARGET = tiny_model(7)


def engine_with(kind: str) -> Engine:
    """An engine with a drafter, without end tokens."""
    engine = tiny_engine(TARGET, slots=2, max_len=MAX_LEN)
    engine.load(DRAFTERS[kind](engine))
    return engine


@cache
def recorded(
    temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, max_tokens: int = 20
) -> Trajectory:
    """An answer of the target."""
    asked = request(
        (4, 8, 1, 1, 9) * 4,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=3,
    )
    (trajectory,) = record(tiny_engine(TARGET, slots=1, max_len=MAX_LEN), [asked], batch_size=1)
    return trajectory


def draft_of(engine: Engine) -> ModelDrafter:
    """The loaded drafter, which has a model."""
    assert isinstance(engine.drafter, ModelDrafter)
    return engine.drafter


# ---------------------------------------------------------------- tokens alone


def test_one_pass_serves_every_draft_temperature() -> None:
    """Profiles for several temperatures equal those made one at a time."""
    drafter = draft_of(engine_with("draft"))
    trajectory = recorded(0.9, top_k=6)
    temperatures = [None, 0.0, 0.7, 1.3]

    together = model_profiles(drafter, trajectory, temperatures, max_drafts=4, max_len=MAX_LEN)

    for temperature, profile in zip(temperatures, together, strict=True):
        (alone,) = model_profiles(drafter, trajectory, [temperature], max_drafts=4, max_len=MAX_LEN)
        assert torch.equal(profile.survival, alone.survival)
    assert len({float(profile.survival.sum()) for profile in together}) == 4


@pytest.mark.parametrize("draft_temperature", [None, 0.5, 1.4])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.8, 0, 1.0), (1.1, 4, 1.0), (1.0, 0, 0.7), (0.9, 6, 0.8)]
)
def test_survival_multiplies_q_over_p(
    temperature: float, top_k: int, top_p: float, draft_temperature: float | None
) -> None:
    """Against slow forward passes, by both rules; the draft follows all but the temperature."""
    engine = engine_with("draft")
    drafter = draft_of(engine)
    asked = request(
        random_prompt(6, 5),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=14,
        seed=2,
        ignore_eos=True,
    )
    (trajectory,) = record(engine, [asked], batch_size=1)

    (profile,) = profiles(
        drafter,
        [trajectory],
        max_drafts=3,
        max_len=MAX_LEN,
        draft_temperature=draft_temperature,
    )

    ratios = []
    for i in range(1, len(trajectory.output_tokens)):
        before = (*asked.prompt_tokens, *trajectory.output_tokens[:i])
        q = reference_probs(
            plain_logits(drafter.model, [before])[0].double().tolist(),
            temperature if draft_temperature is None else draft_temperature,
            top_k,
            top_p,
        )[trajectory.output_tokens[i]]
        ratios.append(q / exp(trajectory.log_probs[i - 1]))
    accept = [min(1.0, ratio) for ratio in ratios]
    assert 0.1 < sum(accept) / len(accept) < 0.999
    ratios += [0.0] * 3
    accept += [0.0] * 3
    wanted = [[prod(accept[start : start + j]) for j in (1, 2, 3)] for start in range(13)]
    assert profile.survival.tolist() == [pytest.approx(row, rel=1e-4, abs=1e-7) for row in wanted]
    wanted = [
        [min(prod(ratios[start : start + m]) for m in range(j + 1)) for j in (1, 2, 3)]
        for start in range(13)
    ]
    block = profile.survival_by(VerificationRule.BLOCK)
    assert block.tolist() == [pytest.approx(row, rel=1e-4, abs=1e-7) for row in wanted]


def test_a_greedy_request_has_no_draft_temperature() -> None:
    """Whatever the draft temperature, a greedy request is drafted greedily."""
    drafter = draft_of(engine_with("draft"))

    first, second = model_profiles(drafter, recorded(), [None, 1.3], max_drafts=4, max_len=MAX_LEN)

    assert torch.equal(first.survival, second.survival)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_that_overflows_is_refused(temperature: float) -> None:
    """NaN never passes for a drafter that is merely bad, for greedy requests either."""
    engine = engine_with("draft")
    broken = Transformer(
        TARGET.config,
        TARGET.decoder.layers,
        TARGET.embedding * float("nan"),
        TARGET.final_norm,
        TARGET.head,
        TARGET.backend,
        TARGET.max_len,
    )
    asked: Request = request((1, 2, 3), temperature=temperature, max_tokens=8, ignore_eos=True)
    (trajectory,) = record(engine_with("ngram"), [asked], batch_size=1)

    with pytest.raises(NumericError, match="NaN"):
        model_profiles(
            model_drafter(engine, broken), trajectory, [None], max_drafts=2, max_len=MAX_LEN
        )


# ---------------------------------------------------------------- rollouts


def test_rollouts_leave_the_engine_alone() -> None:
    """Profiling uses no slot of the engine and changes no trajectory."""
    engine = engine_with("ngram")
    assert engine.drafter is not None
    trajectory = recorded()
    before = list(trajectory.output_tokens)

    profile_rollouts(engine.drafter, trajectory, max_drafts=4, max_len=MAX_LEN)

    assert engine.sequences == {}
    assert list(trajectory.output_tokens) == before
    asked = trajectory.request.prompt_tokens
    assert answer(tiny_engine(TARGET, slots=1), asked, len(before)) == before


def test_rollouts_propose_at_every_start() -> None:
    """As many drafts as the lookup gives from each start, and a one where all of them match."""
    engine = engine_with("ngram")
    assert engine.drafter is not None
    trajectory = recorded()
    output = trajectory.output_tokens

    profile = profile_rollouts(engine.drafter, trajectory, max_drafts=4, max_len=MAX_LEN)

    for start in range(1, len(output)):
        fresh = DRAFTERS["ngram"](tiny_engine(TARGET, slots=1))
        state = trajectory.resume_at(start)
        fresh.restore(0, state, None)
        limit = min(4, state.max_drafts(MAX_LEN))
        draft = fresh.propose([0], [state], [limit], None).tokens[0] if limit else []
        matches = [
            float(tuple(draft[:j]) == output[start : start + j] and j <= len(draft))
            for j in (1, 2, 3, 4)
        ]
        assert profile.survival[start - 1].tolist() == matches
        assert profile.num_proposed[start - 1] == len(draft)
    assert 0 < float(profile.survival.mean()) < 1


# ---------------------------------------------------------------- step by step


def step_logits(trajectory: Trajectory, width: int, num_steps: int) -> list[torch.Tensor]:
    """Seeded logits of every step and start; those of a step say nothing about the others."""
    generator = torch.Generator().manual_seed(11)
    return [
        2 * torch.randn(trajectory.num_decoded - step, width, generator=generator)
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("trajectory", [recorded(), recorded(0.9, top_k=6, top_p=0.9)])
def test_steps_that_do_not_depend_on_the_start_are_tokens(trajectory: Trajectory) -> None:
    """With a column for every id and step j = step 0 shifted, both roads give the same bits."""
    (logits,) = step_logits(trajectory, VOCAB, 1)
    temperatures = [None, 0.0, 0.6]

    by_steps = profile_steps(
        [logits[step:] for step in range(4)],
        torch.arange(VOCAB),
        trajectory,
        temperatures,
        max_drafts=4,
        max_len=MAX_LEN,
    )

    by_tokens = profile_tokens(logits, trajectory, temperatures, max_drafts=4, max_len=MAX_LEN)
    for one, other in zip(by_steps, by_tokens, strict=True):
        assert torch.equal(one.survival, other.survival)
        assert torch.equal(one.num_proposed, other.num_proposed)
        assert 0 < float(one.survival.sum()) < one.survival.numel()


@pytest.mark.parametrize("draft_temperature", [None, 0.0, 0.7])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_steps_over_some_columns(temperature: float, draft_temperature: float | None) -> None:
    """Q is spread over the columns alone; a token without a column is never accepted."""
    trajectory = recorded(temperature, top_k=6, top_p=0.9)
    output = trajectory.output_tokens
    columns = sorted({0, 3, *output[1::2]} - {output[4], output[9]})
    steps = step_logits(trajectory, len(columns), 3)

    (profile,) = profile_steps(
        iter(steps),
        torch.tensor(columns),
        trajectory,
        [draft_temperature],
        max_drafts=3,
        max_len=MAX_LEN,
    )

    used = temperature if draft_temperature is None or not temperature else draft_temperature
    for start in range(trajectory.num_decoded):
        accept = []
        for step in range(3):
            place = start + 1 + step
            if place >= len(output) or output[place] not in columns:
                accept.append(0.0)
                continue
            q = reference_probs(steps[step][start].double().tolist(), used, 6, 0.9)
            p = exp(trajectory.log_probs[place - 1])
            accept.append(min(1.0, q[columns.index(output[place])] / p))
        wanted = [prod(accept[: j + 1]) for j in range(3)]
        assert profile.survival[start].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    assert len(columns) < VOCAB
    assert float(profile.survival.sum()) > 0


@pytest.mark.parametrize("bad_step", [0, 1])
def test_steps_that_overflow_are_refused(bad_step: int) -> None:
    """NaN at any step is an error, not a draft that is always wrong."""
    trajectory = recorded()
    steps = step_logits(trajectory, VOCAB, 2)
    steps[bad_step][2, 1] = float("nan")

    with pytest.raises(NumericError, match="NaN"):
        profile_steps(steps, torch.arange(VOCAB), trajectory, [None], max_drafts=2, max_len=MAX_LEN)


# ---------------------------------------------------------------- all roads


@pytest.mark.parametrize("road", ["tokens", "steps", "rollouts"])
@pytest.mark.parametrize("max_tokens", [1, 20])
def test_drafts_are_limited_as_in_the_engine(road: str, max_tokens: int) -> None:
    """K_max, less near the limit of tokens; an answer of one token has no starts at all."""
    trajectory = recorded(max_tokens=max_tokens)
    steps = step_logits(trajectory, VOCAB, min(4, trajectory.num_decoded))

    profile: StartProfile
    if road == "rollouts":
        drafter = engine_with("ngram").drafter
        assert drafter is not None
        profile = profile_rollouts(drafter, trajectory, max_drafts=4, max_len=MAX_LEN)
    elif road == "steps":
        (profile,) = profile_steps(
            steps, torch.arange(VOCAB), trajectory, [None], max_drafts=4, max_len=MAX_LEN
        )
    else:
        logits = steps[0] if steps else torch.empty(0, VOCAB)
        (profile,) = profile_tokens(logits, trajectory, [None], max_drafts=4, max_len=MAX_LEN)

    assert profile.survival.shape == (max_tokens - 1, 4)
    limits = [min(4, max_tokens - emitted - 1) for emitted in range(1, max_tokens)]
    if road == "rollouts":
        assert all(
            drafts <= limit
            for drafts, limit in zip(profile.num_proposed.tolist(), limits, strict=True)
        )
    else:
        assert profile.num_proposed.tolist() == limits

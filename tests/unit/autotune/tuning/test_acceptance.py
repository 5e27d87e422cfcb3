"""Replayed acceptance of a session: arms, records, and drafters that do not work."""

from __future__ import annotations

from uuid import uuid4

import pytest

from autotune.progress import Silent
from autotune.tuning.acceptance import AcceptanceProfile, acceptance_records, profile_drafters
from autotune.tuning.session import Session
from engine.drafters.base import Drafter
from engine.engine import Engine
from engine.model import Transformer
from engine.request import Request
from policies.types import OFF, SpeculativeConfig
from tests.support.replaying import measured
from tests.support.sessions import memory_session
from tests.support.tiny_models import (
    layer_skip,
    model_drafter,
    ngram,
    random_prompt,
    request,
    similar_draft,
    target_itself,
)

TEMPERATURES = (None, 0.0, 0.7)
K_MAX = 3


def requests(*temperatures: float, task: str = "chat") -> list[Request]:
    """One request per temperature."""
    return [
        Request(
            request_id=f"{task} {i}",
            prompt_tokens=asked.prompt_tokens,
            params=asked.params,
            task=task,
        )
        for i, temperature in enumerate(temperatures)
        for asked in [
            request(random_prompt(i, 5 + i), temperature=temperature, max_tokens=14, seed=i)
        ]
    ]


def broken(engine: Engine) -> Drafter:
    """A draft model that computes NaN."""
    target = engine.target
    return model_drafter(
        engine,
        Transformer(
            target.config,
            target.decoder.layers,
            target.embedding * float("nan"),
            target.final_norm,
            target.head,
            target.backend,
            target.max_len,
        ),
    )


DRAFTERS = {"ngram": ngram, "skip": layer_skip, "draft": similar_draft}


def session_of(asked: list[Request], **drafters: object) -> Session:
    """A session with the usual drafters, or chosen ones."""
    return memory_session(
        asked,
        drafters or DRAFTERS,  # type: ignore[arg-type]
        max_num_speculative_tokens=K_MAX,
        draft_temperatures=TEMPERATURES,
    )


def profiled(session: Session) -> AcceptanceProfile:
    """Profiles without anything to note."""
    progress = Silent()
    found = profile_drafters(session, progress)
    assert progress.notes == []
    return found


def test_models_have_a_draft_temperature_and_lookups_have_none() -> None:
    """Arms are drafters with each temperature that matters, and each K."""
    arms = profiled(session_of(requests(0.0, 1.0))).arms(K_MAX)

    assert len(arms) == len(set(arms)) == (1 + 3 + 3) * K_MAX
    assert all(arm.speculates for arm in arms)
    assert {arm.draft_temperature for arm in arms if arm.drafter == "ngram"} == {None}
    assert {arm.draft_temperature for arm in arms if arm.drafter == "skip"} == set(TEMPERATURES)


def test_greedy_traffic_has_no_draft_temperature() -> None:
    """Greedy requests are drafted greedily whatever the temperature: equal arms are one arm."""
    arms = profiled(session_of(requests(0.0, 0.0))).arms(K_MAX)

    assert {arm.draft_temperature for arm in arms} == {None}


def test_a_drafter_that_overflows_is_left_out() -> None:
    """Named with the reason, for greedy traffic too; the others are replayed."""
    for temperatures in ((0.0, 0.0), (0.0, 1.0)):
        progress = Silent()

        found = profile_drafters(
            session_of(requests(*temperatures), broken=broken, ngram=ngram), progress
        )

        assert [drafter for drafter, _ in found.profiles] == ["ngram"]
        assert list(found.snapshots) == ["ngram"]
        (note,) = progress.notes
        assert note.startswith("drafter broken skipped: ")
        assert "NaN" in note


def test_snapshots_are_kept_where_they_save_a_prefill() -> None:
    """A draft model has its own keys and values; the others have none."""
    asked = [*requests(0.0, 1.0), request((1, 2), name="one", max_tokens=1)]

    snapshots = profiled(session_of(asked)).snapshots

    assert set(snapshots["draft"]) == {"chat 0", "chat 1"}
    assert snapshots["ngram"] == snapshots["skip"] == {}


def test_a_discarded_drafter_is_gone() -> None:
    """From arms and snapshots."""
    found = profiled(session_of(requests(0.0, 1.0)))

    found.discard("skip")

    assert {arm.drafter for arm in found.arms(K_MAX)} == {"ngram", "draft"}
    assert set(found.snapshots) == {"ngram", "draft"}


def test_the_error_of_the_requests_is_relative() -> None:
    """Standard error of the logarithm; nothing for arms that do not draft."""
    found = profiled(session_of(requests(0.0, 1.0, 1.0)))
    arm = SpeculativeConfig(drafter="draft", num_speculative_tokens=2)
    counts = found.replay(arm)

    assert counts.tokens_per_round_std_error is not None
    assert found.log_std_error(arm) == pytest.approx(
        counts.tokens_per_round_std_error / counts.tokens_per_round
    )
    assert found.log_std_error(OFF) == found.log_std_error(SpeculativeConfig(drafter="draft")) == 0


def test_one_answer_that_can_be_replayed_has_no_error() -> None:
    """Answers of one token beside it do not turn the error into NaN."""
    asked = [*requests(1.0), request((1, 2), name="one", max_tokens=1)]
    found = profiled(session_of(asked))

    assert found.log_std_error(SpeculativeConfig(drafter="draft", num_speculative_tokens=2)) == 0.0


def test_records_are_per_arm_task_and_temperature() -> None:
    """Every group is told apart; the figures of greedy groups are the engine's own."""
    asked = requests(0.0, 0.0, 1.0, task="chat") + requests(0.0, 1.0, task="code")
    session = session_of(asked)
    acceptance = profiled(session)

    records = list(acceptance_records(session, acceptance, str(uuid4())))

    groups = {(r.task, r.temperature): r.num_requests for r in records}
    assert groups == {("chat", 0.0): 2, ("chat", 1.0): 1, ("code", 0.0): 1, ("code", 1.0): 1}
    assert len(records) == len(acceptance.arms(K_MAX)) * len(groups)
    assert {r.source for r in records} == {"replay"}
    for drafter in DRAFTERS:
        session.engine.load(session.drafters[drafter])
        counts = measured(session.engine, asked[:2], batch_size=2, num_speculative_tokens=2)
        (row,) = (
            r
            for r in records
            if (r.drafter, r.draft_temperature, r.num_speculative_tokens) == (drafter, None, 2)
            and (r.task, r.temperature) == ("chat", 0.0)
        )
        assert row.num_output_tokens == sum(c.num_tokens for c in counts)
        assert row.expected_rounds == sum(c.num_rounds for c in counts)
        assert row.tokens_per_round == row.num_output_tokens / row.expected_rounds
        assert row.num_draft_tokens == sum(k * n for c in counts for k, n in c.by_drafts.items())
        assert row.num_drafts == sum(n for c in counts for k, n in c.by_drafts.items() if k)
        assert row.num_accepted_tokens_per_pos == tuple(
            float(sum(c.per_pos[position] for c in counts)) for position in range(2)
        )


def test_groups_without_rounds_have_no_record() -> None:
    """A21: answers of one token give no ratio."""
    asked = [*requests(1.0, 1.0), request((1, 2), name="one", max_tokens=1)]
    session = session_of(asked)

    records = list(acceptance_records(session, profiled(session), str(uuid4())))

    assert {r.temperature for r in records} == {1.0}


def test_a_group_of_one_has_no_standard_error() -> None:
    """Absent rather than 0 or NaN, also beside an answer of one token."""
    one = Request(
        request_id="one",
        prompt_tokens=(1, 2),
        params=request((1,), temperature=1.0, max_tokens=1).params,
        task="chat",
    )
    session = session_of([*requests(1.0), one])

    records = list(acceptance_records(session, profiled(session), str(uuid4())))

    assert {r.num_requests for r in records} == {2}
    assert {r.tokens_per_round_std_error for r in records} == {None}


def test_the_target_as_its_own_draft_accepts_everything() -> None:
    """At temperature 0 in float32, at every position the answer leaves room for."""
    session = session_of(requests(0.0, 0.0), twin=target_itself)

    (row,) = (
        r
        for r in acceptance_records(session, profiled(session), str(uuid4()))
        if r.num_speculative_tokens == K_MAX
    )

    assert sum(row.num_accepted_tokens_per_pos) == row.num_draft_tokens

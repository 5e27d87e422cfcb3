"""Held-out scoring: laws as recorded, scores as the replay gives them, K by K."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.model import Transformer
from engine.profile import StartProfile, profile_tokens
from engine.record import Trajectory, record
from engine.replay import replay
from engine.training.acceptance import MAX_K, acceptance_table
from engine.training.heldout import score, to_trajectories
from engine.training.student import Student
from engine.training.teacher import Teacher
from tests.support.tiny_models import random_prompt, request, tiny_engine
from tests.support.training import (
    LAYERS,
    eagle3_student,
    pruned_student,
    tiny_examples,
    tiny_teacher,
)

MAX_LEN = 10_000


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    """The target."""
    return tiny_teacher()


def test_laws_are_those_of_a_recording(teacher: Teacher, tmp_path: Path) -> None:
    """Log p of sampled answers, from states in bfloat16, is close to the engine's own."""
    engine = tiny_engine(Transformer.from_weights(teacher.config, teacher.weights, max_len=64))
    asked = [request(random_prompt(0, 3), name="0", temperature=1.0, max_tokens=12, seed=0)]
    (recorded,) = record(engine, asked, batch_size=1)
    examples = tiny_examples(teacher, tmp_path, count=1)
    (found,) = to_trajectories(examples, teacher, LAYERS)
    assert found.output_tokens == recorded.output_tokens
    assert found.log_probs == pytest.approx(recorded.log_probs, abs=0.05)


def test_the_target_itself_is_accepted(teacher: Teacher, tmp_path: Path) -> None:
    """A draft that is the target's own law has K + 1 tokens per round but for the ends."""
    trajectories = to_trajectories(tiny_examples(teacher, tmp_path), teacher, LAYERS)
    hidden = teacher.config.hidden_size

    def own(k: int) -> float:
        def profile(trajectory: Trajectory) -> StartProfile:
            states = trajectory.features_of(LAYERS)[len(trajectory.request.prompt_tokens) :]
            logits = states[:, -hidden:] @ teacher.output_rows.T
            found = profile_tokens(logits, trajectory, [None], max_drafts=k, max_len=MAX_LEN)
            return found[0]

        return score(profile, trajectories, k).tokens_per_round

    assert own(1) == pytest.approx(11 / 6, rel=0.02)
    assert own(3) == pytest.approx(11 / 3, rel=0.05)


@pytest.mark.parametrize("make", [eagle3_student, pruned_student])
def test_the_table_is_the_replay(
    make: Callable[[Teacher], Student], teacher: Teacher, tmp_path: Path
) -> None:
    """Every K, task and temperature, equal to replaying that bucket with that K alone."""
    student = make(teacher)
    trajectories = to_trajectories(tiny_examples(teacher, tmp_path), teacher, LAYERS)
    told: list[int] = []
    rows = acceptance_table(
        lambda t: student.profile(t, MAX_K, MAX_LEN), trajectories, on_answer=told.append
    )
    assert told == list(range(1, 9))
    assert len(rows) == 4 * MAX_K
    for row in rows:
        mine = [
            t
            for t in trajectories
            if (t.request.task, t.request.params.temperature) == (row.task, row.temperature)
        ]
        k = row.num_speculative_tokens
        counts = replay([student.profile(t, k, MAX_LEN) for t in mine], k)
        assert row.num_answers == len(mine) == 2
        assert row.tokens_per_round == pytest.approx(counts.tokens_per_round, rel=1e-5)
        assert row.std_error == pytest.approx(counts.tokens_per_round_std_error, abs=1e-4)
        assert len(row.accepted_per_pos) == k
        # Every accepted draft is a token, and every round brings one more.
        assert 1 + sum(row.accepted_per_pos) == pytest.approx(row.tokens_per_round)


def test_one_answer_has_no_error_bar(teacher: Teacher, tmp_path: Path) -> None:
    """What cannot be estimated is None, not 0."""
    trajectories = to_trajectories(tiny_examples(teacher, tmp_path, count=1), teacher, LAYERS)
    student = pruned_student(teacher)
    rows = acceptance_table(lambda t: student.profile(t, MAX_K, MAX_LEN), trajectories)
    assert {row.std_error for row in rows} == {None}


def test_buckets_count_alike(teacher: Teacher, tmp_path: Path) -> None:
    """The score is the mean over the buckets, and `by_task` the mean over temperatures."""
    student = pruned_student(teacher)
    trajectories = to_trajectories(tiny_examples(teacher, tmp_path), teacher, LAYERS)
    found = score(lambda t: student.profile(t, 2, MAX_LEN), trajectories, 2)
    values = [counts.tokens_per_round for counts in found.replays.values()]
    assert len(values) == 4
    assert found.tokens_per_round == pytest.approx(sum(values) / 4)
    by_task = found.by_task()
    assert list(by_task) == ["chat", "code"]
    assert sum(by_task.values()) / 2 == pytest.approx(found.tokens_per_round)
    assert torch.tensor(values).ge(1.0).all()

"""The training loop: it improves, stops early, keeps the best, and goes on after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.errors import TrainingError
from engine.profile import StartProfile
from engine.record import Trajectory
from engine.training.batches import Batch
from engine.training.corpus import Example
from engine.training.heldout import score, to_trajectories
from engine.training.state import TrainingState
from engine.training.student import Lesson, Student
from engine.training.teacher import Teacher
from engine.training.trainer import SCORED_K, TrainerSettings, train
from tests.support.training import (
    LAYERS,
    eagle3_student,
    pruned_student,
    tiny_examples,
    tiny_teacher,
)

MAX_LEN = 10_000


class Clock:
    """A clock: every look at it takes so many seconds."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.now = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        """The time."""
        self.now += self._step_s
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One second per step, whatever the machine does."""
    found = Clock()
    monkeypatch.setattr("engine.training.trainer.monotonic", found)
    return found


class Material:
    """A target with answers to learn from and to be judged on."""

    def __init__(self, folder: Path) -> None:
        self.teacher = tiny_teacher()
        self.examples = tiny_examples(self.teacher, folder / "train", count=12)
        held = tiny_examples(self.teacher, folder / "held", count=4, first=100)
        self.heldout = to_trajectories(held, self.teacher, LAYERS)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Answers of the tiny target."""
    return Material(tmp_path_factory.mktemp("answers"))


def run(
    material: Material,
    student: Student,
    folder: Path,
    *,
    budget_s: float = 60.0,
    interval_s: float = 10.0,
    mixed_precision: bool = False,
    on_step: Callable[[TrainingState], None] | None = None,
) -> TrainingState:
    """Train with small batches."""
    settings = TrainerSettings(
        budget_s=budget_s,
        learning_rate=1e-2,
        max_batch_tokens=80,
        interval_s=interval_s,
        mixed_precision=mixed_precision,
    )
    return train(
        student,
        material.examples,
        material.heldout,
        settings,
        folder,
        fingerprint="f",
        on_step=on_step,
    )


@pytest.mark.parametrize("mixed_precision", [False, True])
@pytest.mark.parametrize("make", [eagle3_student, pruned_student])
def test_training_helps(
    make: Callable[[Teacher], Student], mixed_precision: bool, material: Material, tmp_path: Path
) -> None:
    """The loss falls and the training acceptance rises, for either kind of drafter.

    In mixed precision too, and the weights stay float32.
    """
    torch.manual_seed(0)
    student = make(material.teacher)
    state = run(material, student, tmp_path, mixed_precision=mixed_precision)
    assert {p.dtype for p in student.module.parameters()} == {torch.float32}
    first, last = state.history[0], state.history[-1]
    assert state.finished
    assert last.loss < first.loss
    assert last.acceptance[0] > first.acceptance[0]
    assert state.num_tokens > 0


def test_the_best_weights_are_what_is_left(material: Material, tmp_path: Path) -> None:
    """The student scores what its best evaluation says."""
    torch.manual_seed(0)
    student = pruned_student(material.teacher)
    state = run(material, student, tmp_path)
    found = score(lambda t: student.profile(t, SCORED_K, MAX_LEN), material.heldout, SCORED_K)
    assert state.best is not None
    assert state.best.score == max(e.score for e in state.history)
    assert found.tokens_per_round == pytest.approx(state.best.score)


def test_a_run_goes_on_after_a_kill(material: Material, tmp_path: Path) -> None:
    """From the last evaluation: history kept, steps, epochs and tokens counted on."""

    class KilledError(Exception):
        pass

    def kill(state: TrainingState) -> None:
        if state.step == 25:
            raise KilledError

    torch.manual_seed(0)
    with pytest.raises(KilledError):
        run(material, pruned_student(material.teacher), tmp_path, on_step=kill)
    torch.manual_seed(1)
    steps: list[tuple[int, int, int]] = []

    def watch(state: TrainingState) -> None:
        steps.append((state.step, state.epoch, len(state.history)))

    resumed = run(material, pruned_student(material.teacher), tmp_path, on_step=watch)
    torch.manual_seed(0)
    whole = run(material, pruned_student(material.teacher), mkdir(tmp_path / "whole"))
    # Saved after ten and twenty steps: no more than an interval is lost.
    assert steps[0][0] == 21
    assert steps[0][2] == 2
    assert resumed.finished
    assert (resumed.step, resumed.epoch, resumed.batch) == (whole.step, whole.epoch, whole.batch)
    assert [e.step for e in resumed.history] == [e.step for e in whole.history]
    assert resumed.history[:2] == whole.history[:2]


def test_a_finished_run_is_not_done_again(material: Material, tmp_path: Path) -> None:
    """Its best weights are loaded, and no step is made."""
    torch.manual_seed(0)
    first = pruned_student(material.teacher)
    done = run(material, first, tmp_path)
    second = pruned_student(material.teacher)
    again = run(material, second, tmp_path, on_step=lambda _: pytest.fail("a step was made"))
    assert again == done
    for name, tensor in first.module.state_dict().items():
        assert torch.equal(tensor, second.module.state_dict()[name])


def test_another_run_is_refused(material: Material, tmp_path: Path) -> None:
    """The folder's fingerprint must be that of the run."""
    run(material, pruned_student(material.teacher), tmp_path, budget_s=3.0)
    with pytest.raises(TrainingError, match="other data or settings"):
        train(
            pruned_student(material.teacher),
            material.examples,
            material.heldout,
            TrainerSettings(budget_s=3.0),
            tmp_path,
            fingerprint="g",
        )


class Hopeless:
    """A student whose score never changes."""

    def __init__(self) -> None:
        self._module = nn.Linear(1, 1)
        self.num_profiles = 0

    @property
    def module(self) -> nn.Module:
        """The trainable weights."""
        return self._module

    def size(self, example: Example) -> int:
        """The length."""
        return example.tokens.shape[0]

    def lesson(self, batch: Batch) -> Lesson:
        """A loss that can be lowered without any use."""
        return Lesson(self._module(torch.ones(1, 1)).sum(), (0.0,), 1)

    def profile(self, trajectory: Trajectory, max_drafts: int, max_len: int) -> StartProfile:
        """Nothing is ever accepted."""
        self.num_profiles += 1
        count = trajectory.num_decoded
        return StartProfile(
            torch.zeros(count, max_drafts, dtype=torch.float64),
            torch.zeros(count, dtype=torch.int64),
        )


def test_a_student_that_cannot_improve_stops_early(material: Material, tmp_path: Path) -> None:
    """After the first evaluation and `patience` more, with the first weights."""
    student = Hopeless()
    state = run(material, student, tmp_path, budget_s=10_000.0, interval_s=5.0)
    assert state.finished
    assert len(state.history) == 1 + TrainerSettings(budget_s=1.0).patience
    assert state.best is state.history[0]
    assert state.step == 25
    assert {e.score for e in state.history} == {1.0}


def test_evaluations_are_not_counted(material: Material, tmp_path: Path, clock: Clock) -> None:
    """The budget is for training: an evaluation that takes an hour shortens nothing."""

    class Slow(Hopeless):
        def profile(self, trajectory: Trajectory, max_drafts: int, max_len: int) -> StartProfile:
            clock.now += 900.0
            return super().profile(trajectory, max_drafts, max_len)

    state = run(material, Slow(), tmp_path, budget_s=12.0, interval_s=4.0)
    assert state.step == 12
    assert state.elapsed_s == pytest.approx(12.0)


def mkdir(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir()
    return folder

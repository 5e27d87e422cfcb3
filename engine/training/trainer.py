"""The training loop: one for all drafters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from engine.errors import TrainingError
from engine.record import Trajectory
from engine.training.batches import TokenBatches, make_loader
from engine.training.corpus import Example
from engine.training.heldout import score
from engine.training.state import (
    Evaluation,
    TrainingState,
    load_best,
    load_state,
    save_best,
    save_state,
)
from engine.training.student import Lesson, Student

SCORED_K = 3
"""K at which progress is judged."""

_WARM_UP_STEPS = 30
_FINAL_SHARE = 0.05
_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01
_MAX_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How long and how fast to train.

    Attributes:
        budget_s: Seconds of training; evaluations are not counted.
        learning_rate: Peak; warms up, then follows a cosine over the budget.
        max_batch_tokens: Rows of a batch times the largest `Student.size` among them.
        interval_s: Seconds between evaluations; a kill loses at most one interval.
        patience: Evaluations without a new best before the run stops early.
        seed: Seed of the order of the data.
        mixed_precision: Multiply in bfloat16; weights, optimiser, softmax and scoring stay float32.
    """

    budget_s: float
    learning_rate: float = 1e-3
    max_batch_tokens: int = 1200
    interval_s: float = 150.0
    patience: int = 4
    seed: int = 0
    mixed_precision: bool = False


def train(
    student: Student,
    examples: Sequence[Example],
    heldout: Sequence[Trajectory],
    settings: TrainerSettings,
    folder: Path,
    *,
    fingerprint: str,
    on_step: Callable[[TrainingState], None] | None = None,
) -> TrainingState:
    """Train until the budget ends or held-out tokens per round stop growing.

    The student ends with its best weights. A run that was killed goes on where its folder says.

    Args:
        student: What to train.
        examples: Answers to learn from.
        heldout: Answers to be judged on.
        settings: Budget and speed.
        folder: Where the state is kept; exists.
        fingerprint: Identifies data and settings; a folder of another run is refused.
        on_step: Told where the run stands, after every step.

    Raises:
        TrainingError: The folder holds another run or damaged files, or the answers teach nothing.
    """
    optimizer = torch.optim.AdamW(
        student.module.parameters(),
        lr=settings.learning_rate,
        betas=_BETAS,
        weight_decay=_WEIGHT_DECAY,
    )
    state = load_state(folder, fingerprint, student.module, optimizer)
    if state is None:
        state = TrainingState(fingerprint)
    run = _Run(student, heldout, settings, folder, optimizer, state)
    sizes = [student.size(example) for example in examples]
    sampler = TokenBatches(sizes, settings.max_batch_tokens, settings.seed)
    loader = make_loader(examples, sampler)
    while not state.finished:
        sampler.epoch, sampler.skip = state.epoch, state.batch
        seen = state.num_tokens
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.mixed_precision):
                lesson = student.lesson(batch)
            if lesson.num_tokens:
                run.step(lesson)
            if on_step is not None:
                on_step(state)
            if state.finished:
                break
        else:
            if state.batch == 0 and state.num_tokens == seen:
                raise TrainingError("no answer is long enough to learn from")
            state.epoch, state.batch = state.epoch + 1, 0
    load_best(folder, student.module)
    return state


class _Run:
    """Optimiser, clock and learning curve of one run."""

    def __init__(
        self,
        student: Student,
        heldout: Sequence[Trajectory],
        settings: TrainerSettings,
        folder: Path,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
    ) -> None:
        self._student = student
        self._heldout = heldout
        self._settings = settings
        self._folder = folder
        self._optimizer = optimizer
        self._state = state
        self._schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        self._lessons: list[tuple[float, Lesson]] = []
        self._evaluated_at = state.elapsed_s
        self._mark = monotonic()

    def step(self, lesson: Lesson) -> None:
        """Learn from one batch; evaluate and save when an interval is over."""
        state, module = self._state, self._student.module
        self._optimizer.zero_grad(set_to_none=True)
        lesson.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), _MAX_NORM)
        self._optimizer.step()
        now = monotonic()
        state.elapsed_s += now - self._mark
        self._mark = now
        state.step += 1
        state.batch += 1
        state.num_tokens += lesson.num_tokens
        self._lessons.append((float(lesson.loss.detach()), lesson))
        self._schedule.step()
        over = state.elapsed_s >= self._settings.budget_s
        if over or state.elapsed_s - self._evaluated_at >= self._settings.interval_s:
            self._evaluate()
            state.finished = over or self._has_stalled()
            save_state(self._folder, state, module, self._optimizer)
            self._mark = monotonic()

    def _evaluate(self) -> None:
        state, max_len = self._state, max(len(t.output_tokens) for t in self._heldout) + 2**20
        found = score(
            lambda trajectory: self._student.profile(trajectory, SCORED_K, max_len),
            self._heldout,
            SCORED_K,
        )
        count = len(self._lessons)
        positions = zip(*(lesson.acceptance for _, lesson in self._lessons), strict=True)
        previous = state.best
        evaluation = Evaluation(
            elapsed_s=state.elapsed_s,
            step=state.step,
            num_tokens=state.num_tokens,
            loss=sum(loss for loss, _ in self._lessons) / count,
            acceptance=tuple(sum(values) / count for values in positions),
            tokens_per_round=found.by_task(),
            score=found.tokens_per_round,
        )
        state.history.append(evaluation)
        if previous is None or evaluation.score > previous.score:
            save_best(self._folder, self._student.module)
        self._lessons.clear()
        self._evaluated_at = state.elapsed_s

    def _has_stalled(self) -> bool:
        best = self._state.best
        assert best is not None
        since = len(self._state.history) - 1 - self._state.history.index(best)
        return since >= self._settings.patience

    def _rate(self, _: int) -> float:
        """Share of the peak: a warm-up by steps, then a cosine by the clock."""
        warm = min(1.0, (self._state.step + 1) / _WARM_UP_STEPS)
        share = min(1.0, self._state.elapsed_s / self._settings.budget_s)
        cosine = _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * share))
        return warm * cosine

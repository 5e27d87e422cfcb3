"""What the trainer needs of a drafter that learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from engine.profile import StartProfile
from engine.record import Trajectory
from engine.training.batches import Batch
from engine.training.corpus import Example


@dataclass(frozen=True, slots=True)
class Lesson:
    """One batch's result.

    Attributes:
        loss: Scalar with gradient.
        acceptance: Mean of sum min(p, q) at each draft position.
        num_tokens: Answer tokens that counted; with none there is nothing to learn from.
    """

    loss: Tensor
    acceptance: tuple[float, ...]
    num_tokens: int


class Student(Protocol):
    """A drafter in training: it gives a loss, and it can be scored like a finished one."""

    @property
    def module(self) -> nn.Module:
        """The trainable weights; `state_dict()` is what is written."""
        ...

    def size(self, example: Example) -> int:
        """The length along which padding costs this student most, tokens."""
        ...

    def lesson(self, batch: Batch) -> Lesson:
        """Loss on a batch, with gradient."""
        ...

    def profile(self, trajectory: Trajectory, max_drafts: int, max_len: int) -> StartProfile:
        """What it would achieve on a recorded answer, drafting at the request's temperature."""
        ...

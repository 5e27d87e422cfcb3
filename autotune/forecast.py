"""How far a planned run is and how long it still takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from autotune.progress import Stage

_TRUSTED_FRACTION = 0.1  # of a stage, from which on its own pace says more than the plan does


class Forecast:
    """Scales the plan by how the finished stages compared with it.

    A machine twice as slow as planned makes every stage to come twice as long. Within a stage
    that has come far enough, its own pace takes over.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start without a plan.

        Args:
            clock: Seconds that only grow.
        """
        self._clock = clock
        self._stages: list[Stage] = []
        self._current = -1
        self._fraction = 0.0
        self._began = clock()
        self._finished_s = 0.0
        self._finished_expected_s = 0.0

    def plan(self, stages: Sequence[Stage]) -> None:
        """Take the stages, none of which has begun."""
        self._stages = list(stages)
        self._current = -1

    def begin(self, title: str) -> None:
        """A stage begins, and the one before it is done.

        Stages of the plan that lie between the two are over without having run; one that is not
        in the plan takes its place in it without an expectation.
        """
        now = self._clock()
        if self._current >= 0:
            self._finished_s += now - self._began
            self._finished_expected_s += self._stages[self._current].expected_s
        ahead = range(self._current + 1, len(self._stages))
        found = next((i for i in ahead if self._stages[i].title == title), None)
        if found is None:
            found = self._current + 1
            self._stages.insert(found, Stage(title, 0.0))
        self._current, self._fraction, self._began = found, 0.0, now

    def update(self, fraction: float) -> None:
        """The share of the current stage that is done; never falls."""
        self._fraction = min(1.0, max(self._fraction, fraction))

    @property
    def title(self) -> str:
        """The current stage, empty before the first."""
        return self._stages[self._current].title if self._current >= 0 else ""

    @property
    def seconds_left(self) -> float:
        """Seconds until the last stage ends."""
        scale = (
            self._finished_s / self._finished_expected_s if self._finished_expected_s > 0 else 1.0
        )
        ahead = sum(stage.expected_s for stage in self._stages[self._current + 1 :])
        return self._current_left_s(scale) + ahead * scale

    @property
    def share_done(self) -> float:
        """Planned seconds that are done / all planned seconds, from 0 to 1."""
        total = sum(stage.expected_s for stage in self._stages)
        if total <= 0 or self._current < 0:
            return 0.0
        done = sum(stage.expected_s for stage in self._stages[: self._current])
        return min(1.0, (done + self._fraction * self._stages[self._current].expected_s) / total)

    def _current_left_s(self, scale: float) -> float:
        if self._current < 0:
            return 0.0
        spent = self._clock() - self._began
        if self._fraction >= _TRUSTED_FRACTION:
            return spent * (1 - self._fraction) / self._fraction
        # At its start a stage says nothing yet, except that it cannot end before now.
        return max(0.0, self._stages[self._current].expected_s * scale - spent)

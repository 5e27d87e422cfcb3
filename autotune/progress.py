"""How long work tells what it does: an object the caller passes in, so nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run.

    Attributes:
        title: What is done, for people.
        expected_s: Rough seconds, for the share of the bar and the time left.
    """

    title: str
    expected_s: float


class Progress(Protocol):
    """Receives progress."""

    def plan(self, stages: Sequence[Stage]) -> None:
        """All stages, before the first begins."""
        ...

    def begin(self, title: str) -> None:
        """A stage of the plan begins; the one before it is done."""
        ...

    def update(self, fraction: float, detail: str = "") -> None:
        """The share of the current stage that is done, and what is at hand."""
        ...

    def note(self, text: str) -> None:
        """Something the user should know, for example a drafter that was skipped."""
        ...


class Silent:
    """Discards everything but the notes, which it keeps."""

    def __init__(self) -> None:
        """Start without notes."""
        self.notes: list[str] = []

    def plan(self, stages: Sequence[Stage]) -> None:
        """Ignore."""

    def begin(self, title: str) -> None:
        """Ignore."""

    def update(self, fraction: float, detail: str = "") -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Keep."""
        self.notes.append(text)

"""The outcome of one paired block. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from policies.types import Block, SpeculativeConfig

if TYPE_CHECKING:
    from engine.engine import RowOutcome


@dataclass(slots=True)
class Tally:
    """What one arm did in its windows; every row of a round counts as a round of its own."""

    num_tokens: int = 0
    num_rounds: int = 0
    seconds: float = 0.0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def add(self, outcomes: Sequence[RowOutcome], seconds: float) -> None:
        """Count a round."""
        self.seconds += seconds
        self.num_rounds += len(outcomes)
        for outcome in outcomes:
            self.num_tokens += outcome.num_emitted
            self.num_drafts += outcome.num_drafted > 0
            self.num_draft_tokens += outcome.num_drafted
            self.num_accepted_tokens += outcome.num_accepted


@dataclass(frozen=True, slots=True)
class PairedBlock:
    """One measured block.

    Attributes:
        baseline: Unloaded off.
        candidate: The arm.
        disturbed: Others used the processors meanwhile.
        expected_tokens: What the candidate would emit on average for the same work, by replay;
            None where that is unknown.
    """

    baseline: Tally
    candidate: Tally
    disturbed: bool
    expected_tokens: float | None = None

    def block(self) -> Block:
        """The part that decisions rest on."""
        return Block(
            baseline_tokens=self.baseline.num_tokens,
            baseline_s=self.baseline.seconds,
            candidate_tokens=self.candidate.num_tokens,
            candidate_s=self.candidate.seconds,
            expected_tokens=self.expected_tokens,
        )


class Bench(Protocol):
    """What measures arms."""

    def measure(
        self, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> PairedBlock:
        """Measure one block of an arm against unloaded off.

        Args:
            config: The arm.
            batch_size: Requests in flight.
            stage: With `index`, names the block: equal ones give all arms the same draws.
            index: Number of the block in its stage.

        Raises:
            EngineError: The arm failed.
        """
        ...

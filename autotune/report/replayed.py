"""What `spectune replay` tells: tokens per round for every K, and where drafts are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from autotune.report.acceptance import DEFINITIONS, AcceptanceRow

CONFIDENCE = 0.95
_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRow:
    """One K by one verification rule, on one group of answers.

    Attributes:
        rule: `ratio` or `block`; `delta` for deterministic drafts.
        counts: Expected counts.
        std_error: Of tokens per round, jackknife over the answers; None with fewer than two.
    """

    rule: str
    counts: AcceptanceRow
    std_error: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of tokens per round, at `CONFIDENCE`; a round emits one token at least."""
        mean = self.counts.tokens_per_round
        if mean is None or self.std_error is None:
            return None
        return max(1.0, mean - _QUANTILE * self.std_error), mean + _QUANTILE * self.std_error

    def to_json(self) -> dict[str, object]:
        """Counts and ratios as JSON values."""
        return (
            {"rule": self.rule}
            | self.counts.to_json()
            | {
                "tokens_per_round_std_error": self.std_error,
                "tokens_per_round_interval": self.interval,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A drafter on a server's answers.

    Attributes:
        source: `file:<name>` of the log.
        drafter: Its name.
        method: How it drafts.
        draft_temperature: As in `SpeculativeConfig`.
        num_answers: Answers in use.
        skipped: Lines that were not used, counted by reason.
        axes: What the groups are told apart by.
        sizes: Over all answers, one for every rule and K.
        groups: The same for every group; groups without a round are left out.
    """

    source: str
    drafter: str
    method: str
    draft_temperature: float | None
    num_answers: int
    skipped: Mapping[str, int]
    axes: tuple[str, ...]
    sizes: tuple[ReplayedRow, ...]
    groups: tuple[ReplayedRow, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules, in order."""
        return tuple(dict.fromkeys(row.rule for row in self.sizes))

    def of(self, rule: str, num_speculative_tokens: int) -> tuple[AcceptanceRow, ...]:
        """The groups of one rule and K."""
        return tuple(
            row.counts
            for row in self.groups
            if row.rule == rule
            and row.counts.config.num_speculative_tokens == num_speculative_tokens
        )

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        return {
            "source": self.source,
            "drafter": self.drafter,
            "method": self.method,
            "draft_temperature": self.draft_temperature,
            "num_answers": self.num_answers,
            "skipped": dict(self.skipped),
            "by": list(self.axes),
            "confidence": CONFIDENCE,
            "definitions": list(DEFINITIONS),
            "sizes": [row.to_json() for row in self.sizes],
            "groups": [row.to_json() for row in self.groups],
        }

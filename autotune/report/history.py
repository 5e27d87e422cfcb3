"""One published generation in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from autotune.document import PublishedConfig
from store.records import Publication


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """A generation.

    Attributes:
        scope: What it is for.
        generation: Its number within the scope.
        created: When it was published.
        run_id: The run behind it.
        workload: Source of the workload.
        drafter: What it loads, or `off`.
        num_speculative_tokens: K by measured batch size.
        num_validated: How many of those are validated.
        sha256: Digest of the document.
    """

    scope: str
    generation: int
    created: datetime
    run_id: str
    workload: str
    drafter: str
    num_speculative_tokens: dict[int, int]
    num_validated: int
    sha256: str

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        return {
            "scope": self.scope,
            "generation": self.generation,
            "created": self.created.isoformat(),
            "run_id": self.run_id,
            "workload": self.workload,
            "drafter": self.drafter,
            "num_speculative_tokens": {
                str(size): k for size, k in self.num_speculative_tokens.items()
            },
            "num_validated": self.num_validated,
            "sha256": self.sha256,
        }


def history_row(publication: Publication, config: PublishedConfig) -> HistoryRow:
    """Sum up a publication and its document."""
    return HistoryRow(
        scope=publication.scope,
        generation=publication.generation,
        created=publication.created_at,
        run_id=publication.run_id,
        workload=config.workload.source,
        drafter=config.envelope.drafter,
        num_speculative_tokens={
            one.batch_size: one.num_speculative_tokens for one in config.evidence
        },
        num_validated=sum(one.status == "validated" for one in config.evidence),
        sha256=publication.sha256,
    )

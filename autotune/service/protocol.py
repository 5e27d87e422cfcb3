"""What the service and its worker process tell each other, as JSON.

The worker gets one `WorkerRequest` on standard input and writes `WorkerReport`s, one a line,
on standard output. What libraries print there by themselves goes to its standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from autotune.settings import TuneSettings


class WorkerRequest(BaseModel):
    """One search to run.

    Attributes:
        settings: Settings of the search.
        store: Path or URL of the store.
        studies: File of the search's studies.
        memory_bytes: Address space the worker may take; None does not limit it.
        parent_pid: The service's process id: with another parent the service is gone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: TuneSettings
    store: str
    studies: Path
    memory_bytes: int | None
    parent_pid: int


class WorkerReport(BaseModel):
    """One thing the worker tells.

    Attributes:
        kind: `stage` and `note` tell of progress; one of the others comes last.
        text: Title, note or reason of a failure; never text of a request.
        scope: What was published for.
        generation: The generation that was published.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stage", "note", "published", "unpublished", "failed"]
    text: str = ""
    scope: str | None = None
    generation: int | None = None

"""Settings of a training run, checked at the edge: errors name the key, the value and the range."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autotune.errors import ConfigError
from autotune.settings import DEFAULT_TARGET

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_MIN_BUDGET_S = 1.0
_MAX_BUDGET_S = 7 * 24 * 3600.0
WORK_SUFFIX = ".work"
"""What the folder of an unfinished run has after the name of its output folder."""


class TrainSettings(BaseModel):
    """Everything a training run depends on.

    Attributes:
        method: What kind of drafter.
        out: Folder to write, which must not hold anything yet.
        target: Name of the embedded model, a folder or a hub repository.
        workload: JSONL of requests whose answers are learned from; None is the shipped workload.
        heldout: JSONL of requests whose answers are judged on; None splits some off by prompt.
        heldout_share: Share of the prompts that is split off where `heldout` is None.
        num_heldout: Held-out requests to answer, at most.
        budget: Seconds for answering prompts and training together, or a text such as `30m`.
        generation_share: Share of the budget for answering; 0 counts where `corpus` is given.
        corpus: Folder of an existing corpus of this target, instead of answering.
        max_corpus_gib: Most that the answers may take on disk, GiB.
        draft_vocab_size: Tokens an EAGLE-3 head can draft, and in every loss of a pruned draft.
        num_layers: Layers of a layer-pruned draft.
        learning_rate: Peak.
        batch_size: Requests answered side by side.
        max_len: Longest prompt and answer together, tokens.
        seed: Seed of every random choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["layer-pruned", "eagle3"]
    out: Path
    target: str = DEFAULT_TARGET
    workload: Path | None = None
    heldout: Path | None = None
    heldout_share: float = Field(default=0.1, gt=0, le=0.5)
    num_heldout: int = Field(default=96, ge=2)
    budget: float = Field(default=1800.0, ge=_MIN_BUDGET_S, le=_MAX_BUDGET_S)
    generation_share: float = Field(default=0.4, gt=0, lt=1)
    corpus: Path | None = None
    max_corpus_gib: float = Field(default=8.0, gt=0, le=1024)
    draft_vocab_size: int = Field(default=8192, ge=1)
    num_layers: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    batch_size: int = Field(default=64, ge=1, le=1024)
    max_len: int = Field(default=512, ge=16)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @field_validator("budget", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("must be a number and a unit, such as 90s, 30m or 1h")
        seconds = float(match[1]) * _UNITS_S[match[2]]
        if not _MIN_BUDGET_S <= seconds <= _MAX_BUDGET_S:
            raise ValueError("must be from 1s to 168h")
        return seconds

    @field_validator("out")
    @classmethod
    def _named(cls, value: Path) -> Path:
        if not value.name:
            raise ValueError("must name a folder")
        return value

    @model_validator(mode="after")
    def _two_files(self) -> Self:
        if self.heldout is not None and self.heldout == self.workload:
            raise ValueError("heldout and workload are the same file; leave heldout out to split")
        return self

    @property
    def work(self) -> Path:
        """Folder of the unfinished run, beside `out`."""
        return self.out.with_name(self.out.name + WORK_SUFFIX)

    @property
    def generation_s(self) -> float:
        """Seconds for answering prompts."""
        return 0.0 if self.corpus is not None else self.budget * self.generation_share

    @property
    def training_s(self) -> float:
        """Seconds for training."""
        return self.budget - self.generation_s

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """Build from untyped values.

        Raises:
            ConfigError: One line with every faulty key, its value and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("; ".join(map(_told, error.errors()))) from error


def _told(fault: Any) -> str:
    problem = str(fault["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where} = {fault['input']!r}: {problem}" if where else problem

"""Settings of a search, checked at the edge: every error names the key, the value and the range."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from autotune.errors import ConfigError
from autotune.shipped import shipped_drafters

DEFAULT_TARGET = "smollm2-135m-instruct"

STORE_FILE = "spectuned.db"
"""Name of the store in the state folder."""

STUDIES_FILE = "studies.db"
"""Name of the search's own file, beside the store."""


def state_dir() -> Path:
    """Where the store lives unless it is named.

    The first of these that applies:

    1. `$SPECTUNED_STATE`;
    2. a folder `.spectuned` beside the virtual environment that runs this: a development
       checkout writes its demo there, and its own commands shall read it;
    3. `spectuned` in the user's XDG state folder.
    """
    if configured := os.environ.get("SPECTUNED_STATE"):
        return Path(configured).expanduser()
    beside = Path(sys.prefix).parent / ".spectuned"
    if sys.prefix != sys.base_prefix and beside.is_dir():
        return beside
    shared = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG specification asks to ignore a relative path.
    return (shared if shared.is_absolute() else Path.home() / ".local" / "state") / "spectuned"


def _default_drafters(validated: dict[str, Any]) -> dict[str, Path]:
    """The shipped drafters, where they belong to the target."""
    return shipped_drafters() if validated.get("target") == DEFAULT_TARGET else {}


class TuneSettings(BaseModel):
    """Everything a search depends on; stored with the run.

    Attributes:
        target: Name of the embedded model, a folder or a hub repository.
        traffic: JSONL of requests; None is the shipped workload.
        drafters: Checkpoints of drafters by name; by default those that come with spectuned for
            the embedded target, and none for another one.
        layer_skip: Layers of the target to try as drafts; None picks by the target's depth where
            there are no other drafters.
        ngram: Try n-gram drafting.
        batch_sizes: Batch sizes to measure.
        max_num_speculative_tokens: Largest K to try.
        draft_temperatures: Draft temperatures to try; None follows the request.
        num_requests: Requests of the workload to record.
        trials: Measured trials per batch size; they go where the choice is most in doubt.
        explore_blocks: Paired blocks per trial.
        validate_blocks: Fresh paired blocks per batch size; what is settled early leaves its
            blocks to the rest.
        window_s: Seconds of one arm's window; a block has four.
        max_len: Longest sequence, prompt and output.
        dtype: Compute type; `auto` takes float32 where the native kernels work, else bfloat16 where
            the processor multiplies it.
        backend: Kernels of the models on a CPU: `native` is compiled here and computes in float32,
            `onednn` and `torch` need no compiler; `auto` takes the fastest that works. Sampling
            is native wherever the native kernels load.
        device: Where to run.
        memory_bytes: Memory the process may use; None takes most of what is free.
        seed: Seed of every random choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = DEFAULT_TARGET
    traffic: Path | None = None
    drafters: dict[str, Path] = Field(default_factory=_default_drafters)
    layer_skip: tuple[int, ...] | None = None
    ngram: bool = True
    batch_sizes: tuple[int, ...] = (1, 4, 16)
    max_num_speculative_tokens: int = Field(default=8, ge=1, le=32)
    draft_temperatures: tuple[float | None, ...] = (None, 0.0, 0.7, 1.3)
    num_requests: int = Field(default=96, ge=2)
    trials: int = Field(default=10, ge=1)
    explore_blocks: int = Field(default=2, ge=2)
    validate_blocks: int = Field(default=40, ge=2)
    window_s: float = Field(default=0.5, gt=0, le=60)
    max_len: int = Field(default=1024, ge=16)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    backend: Literal["auto", "native", "onednn", "torch"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory_bytes: int | None = Field(default=None, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @field_validator("batch_sizes")
    @classmethod
    def _sorted_sizes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1 or max(value) > 1024:
            raise ValueError("needs at least one size, each from 1 to 1024")
        return tuple(sorted(set(value)))

    @field_validator("draft_temperatures")
    @classmethod
    def _temperatures(cls, value: tuple[float | None, ...]) -> tuple[float | None, ...]:
        if not value or any(t is not None and not 0 <= t <= 10 for t in value):
            raise ValueError("needs at least one value, each null or from 0 to 10")
        return tuple(dict.fromkeys(value))

    @field_validator("drafters")
    @classmethod
    def _names(cls, value: dict[str, Path]) -> dict[str, Path]:
        for name in value:
            if not name:
                raise ValueError("a drafter needs a name")
            if name in ("off", "ngram") or name.startswith("layer-skip"):
                raise ValueError(f"the name {name!r} is taken by a built-in drafter")
        return value

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """Build from untyped values.

        Raises:
            ConfigError: One line with every faulty key, its value and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(
                "; ".join(
                    f"{'.'.join(str(part) for part in fault['loc'])} = {fault['input']!r}: "
                    f"{fault['msg'].removeprefix('Value error, ')}"
                    for fault in error.errors()
                )
            ) from error

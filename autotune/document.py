"""The published document: what serving layers read, as a pydantic model.

The exact bytes produced here are what the store keeps and what consumers get. Fields are only
ever added; a change of meaning raises `SCHEMA`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from policies.types import ScheduleCell, SpeculativeConfig

SCHEMA = "spectuned/1"


class Model(BaseModel):
    """Base of every part: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Identity(Model):
    """Which document this is. Generations only grow within an epoch."""

    schema_version: str = SCHEMA
    epoch: str
    generation: int = Field(ge=1)
    created: datetime
    refresh_after: datetime
    expires: datetime
    on_expiry: Literal["keep", "off"] = "keep"
    previous: int | None = None
    tuner_version: str


class Target(Model):
    """The model the document is valid for."""

    name: str
    fingerprint: str
    tokenizer_sha256: str
    dtype: str
    quantization: str | None = None
    num_parameters: int


class Device(Model):
    """The device the measurements were taken on; absent figures are null, never guessed."""

    kind: Literal["cuda", "cpu"]
    name: str
    compute_capability: str | None = None
    memory_bytes: int | None = None
    mig_profile: str | None = None
    power_limit_watts: float | None = None
    driver: str | None = None
    cores: int | None = None
    isa: tuple[str, ...] = ()
    fingerprint: str


class Match(Model):
    """A consumer whose own facts differ from these must not apply the document.

    `engine_backend` names the kernels that the measurements were taken with; null in documents
    from before there was a choice.
    """

    target: Target
    device: Device
    engine: str
    engine_version: str
    engine_backend: str | None = None


class Workload(Model):
    """The requests behind the numbers. `source: default` is our own text, not your traffic."""

    source: str
    fingerprint: str
    num_requests: int
    share_by_task: dict[str, float]
    share_by_temperature: dict[str, float]


class EnvelopeModel(Model):
    """Restart class: what is in memory."""

    drafter: str
    method: Literal["none", "ngram", "layer_skip", "draft_model", "eagle3"]
    max_num_speculative_tokens: int
    draft_temperature: float | None = None
    draft_parameters: dict[str, str | int | float] = Field(default_factory=dict)


class Cell(Model):
    """Hot class: K for batch sizes `bs_lo..bs_hi`, both included; null is the tail."""

    bs_lo: int = Field(ge=1)
    bs_hi: int | None
    num_speculative_tokens: int = Field(ge=0)
    off_mode: Literal["k0", "unload"] | None
    measured_at: int | None
    status: Literal["validated", "provisional"]

    @classmethod
    def of(cls, cell: ScheduleCell) -> Self:
        """From the words of the policies."""
        return cls(
            bs_lo=cell.bs_lo,
            bs_hi=cell.bs_hi,
            num_speculative_tokens=cell.num_speculative_tokens,
            off_mode=None if cell.off_mode is None else cell.off_mode.value,
            measured_at=cell.measured_at,
            status=cell.status.value,
        )


class Interval(Model):
    """A measured gain over unloaded off, as a fraction (0.02 = 2 %), with its interval.

    Standard errors are of the log gain: the whole, and the part from the choice of requests.
    """

    gain: float
    low: float
    high: float
    confidence: float
    num_blocks: int
    std_error: float
    request_std_error: float
    baseline_tokens_per_s: float
    candidate_tokens_per_s: float


class Arm(Model):
    """One configuration that was measured."""

    drafter: str
    num_speculative_tokens: int
    draft_temperature: float | None

    @classmethod
    def of(cls, config: SpeculativeConfig) -> Self:
        """From the words of the policies."""
        return cls(
            drafter=config.drafter,
            num_speculative_tokens=config.num_speculative_tokens,
            draft_temperature=config.draft_temperature,
        )

    def config(self) -> SpeculativeConfig:
        """The same arm in the words of the policies."""
        return SpeculativeConfig(
            drafter=self.drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            draft_temperature=self.draft_temperature,
        )


class CellEvidenceModel(Model):
    """Why a measured batch size got its K."""

    batch_size: int
    drafter: str
    num_speculative_tokens: int
    draft_temperature: float | None
    status: Literal["validated", "provisional"]
    reason: str
    measured: Interval | None
    best_candidate: Arm | None
    best_candidate_measured: Interval | None
    predicted_tokens_per_s: float | None
    predicted_off_tokens_per_s: float | None
    tpot_s_baseline: float | None
    tpot_s: float | None
    num_accepted_tokens_per_pos: tuple[float, ...] = ()
    num_drafts: float | None = None
    measured_in: Literal["own_engine"] = "own_engine"


class Policy(Model):
    """The rules the decision followed."""

    objective: Literal["decode_tokens_per_s"] = "decode_tokens_per_s"
    hot_margin: float
    restart_margin: float
    harm_limit: float
    confidence: float
    between_sizes: str
    lossless: bool = True


class DecidedAbout(Model):
    """What was to be decided; with the blocks of the run it gives the same decision again."""

    drafter: str
    max_num_speculative_tokens: int
    draft_temperature: float | None
    candidates: dict[int, Arm]
    weights: dict[int, float] | None
    tie_margin: float


class PublishedConfig(Model):
    """One published generation."""

    identity: Identity
    match: Match
    workload: Workload
    envelope: EnvelopeModel
    schedule: tuple[Cell, ...]
    evidence: tuple[CellEvidenceModel, ...]
    policy: Policy
    run_id: str
    reason: str
    question: DecidedAbout | None = None

    def to_bytes(self) -> bytes:
        """The exact bytes that are stored and served (UTF-8 JSON, stable key order)."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    def num_speculative_tokens(self, batch_size: int) -> int:
        """K for a batch size, by the one documented rule.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch size = {batch_size}: must be 1 or more")
        for cell in self.schedule:
            if cell.bs_lo <= batch_size and (cell.bs_hi is None or batch_size <= cell.bs_hi):
                return cell.num_speculative_tokens
        raise ValueError(f"batch size = {batch_size}: not covered by the schedule")

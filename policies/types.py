"""The shared vocabulary: frozen values that every other package speaks in.

Only the standard library is imported here, so any process may use these names
without paying for torch, a database driver or a web framework.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OFF_DRAFTER = "off"
"""Name of the arm without a drafter in memory: the dense baseline."""


class OffMode(StrEnum):
    """The two ways of not speculating: they cost different amounts on real engines."""

    K0 = "k0"
    """Drafter loaded, K = 0: a hot change."""
    UNLOAD = "unload"
    """Drafter not in memory: a restart."""


class VerificationRule(StrEnum):
    """How draft tokens that were drawn from a distribution are accepted.

    The law of the output is the target's under both. Deterministic drafts leave no choice: they
    are verified by the delta rule.
    """

    RATIO = "ratio"
    """Token by token, each with min(1, p / q) (Leviathan et al. 2023)."""
    BLOCK = "block"
    """All drafts of a round jointly, which accepts no fewer (Sun et al. 2024)."""


class CellStatus(StrEnum):
    """How far the evidence behind a schedule cell goes."""

    VALIDATED = "validated"
    PROVISIONAL = "provisional"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """One arm of the search.

    Attributes:
        drafter: Name of the drafter, or `off`.
        num_speculative_tokens: K, the draft tokens per round. 0 with a drafter means
            loaded but idle; `off` always has 0.
        draft_temperature: Temperature the drafter samples at; None follows the request,
            0 drafts greedily (verified by the delta rule). Requests at temperature 0 are
            always drafted greedily.
    """

    drafter: str = OFF_DRAFTER
    num_speculative_tokens: int = 0
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 0:
            raise ValueError(
                f"num_speculative_tokens = {self.num_speculative_tokens}: must be 0 or more"
            )
        if self.drafter == OFF_DRAFTER and self.num_speculative_tokens:
            raise ValueError(
                f"num_speculative_tokens = {self.num_speculative_tokens}: "
                "speculation off drafts nothing, so it must be 0"
            )
        if self.draft_temperature is not None and not 0.0 <= self.draft_temperature <= 10.0:
            raise ValueError(
                f"draft_temperature = {self.draft_temperature}: must lie between 0 and 10"
            )

    @property
    def is_off(self) -> bool:
        """True for the arm without a drafter in memory."""
        return self.drafter == OFF_DRAFTER

    @property
    def speculates(self) -> bool:
        """True when the arm drafts at least one token per round."""
        return self.num_speculative_tokens > 0

    def label(self) -> str:
        """Short text for tables, for example `ngram K=3` or `layer-skip-8 K=2 T=0.7`."""
        if self.is_off:
            return OFF_DRAFTER
        if not self.speculates:
            return f"{self.drafter} K=0"
        text = f"{self.drafter} K={self.num_speculative_tokens}"
        return text if self.draft_temperature is None else f"{text} T={self.draft_temperature:g}"


OFF = SpeculativeConfig()
"""Speculation off, drafter not in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKey:
    """What a result was tuned on.

    Attributes:
        source: `default` for the shipped workload, else where the requests came from.
        fingerprint: SHA-256 over the canonical requests.
        num_requests: Requests in the workload.
    """

    source: str
    fingerprint: str
    num_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One randomised ABBA block: both arms on the same starting states, one clock.

    Attributes:
        baseline_tokens: Tokens the baseline arm emitted in its windows.
        baseline_s: Seconds its decode rounds took.
        candidate_tokens: Tokens the candidate arm emitted.
        candidate_s: Seconds its decode rounds took.
        expected_tokens: Tokens it would emit on average for the same work, by replay; None where
            that is unknown.

    Raises:
        ValueError: An arm emitted nothing, or its time is not positive and finite (a trial
            that failed or returned NaN has no block).
    """

    baseline_tokens: float
    baseline_s: float
    candidate_tokens: float
    candidate_s: float
    expected_tokens: float | None = None

    def __post_init__(self) -> None:
        expected = self.candidate_tokens if self.expected_tokens is None else self.expected_tokens
        counts = (self.baseline_tokens, self.candidate_tokens, expected)
        if not all(tokens > 0 for tokens in counts):
            raise ValueError("a block needs tokens from both arms")
        if not (0 < self.baseline_s < math.inf and 0 < self.candidate_s < math.inf):
            raise ValueError("a block needs a positive, finite time for both arms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEstimate:
    """Gain of a candidate over a baseline from paired blocks.

    Attributes:
        log_gain: Natural logarithm of candidate rate / baseline rate (ratio of sums).
        std_error: Standard error of `log_gain`: noise between blocks (delete-one-block
            jackknife) and `request_std_error`, in quadrature.
        num_blocks: Blocks used.
        baseline_tokens_per_s: Baseline output tokens per second over all blocks.
        candidate_tokens_per_s: Candidate output tokens per second over all blocks.
        request_std_error: The part of `std_error` that comes from the choice of requests, which
            blocks drawn from the same requests cannot see; 0 where it was not estimated.
        log_ratios: Log of candidate rate / baseline rate of every block, in the order of
            measuring; empty where only the figures above are known.

    Raises:
        ValueError: A figure is not finite, the standard error is negative, a rate is not
            positive, or there are fewer than 2 blocks: no NaN can reach a decision.
    """

    log_gain: float
    std_error: float
    num_blocks: int
    baseline_tokens_per_s: float
    candidate_tokens_per_s: float
    request_std_error: float = 0.0
    log_ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.log_gain):
            raise ValueError(f"log_gain = {self.log_gain}: must be finite")
        if not 0 <= self.std_error < math.inf:
            raise ValueError(f"std_error = {self.std_error}: must be finite and 0 or more")
        if not 0 <= self.request_std_error <= self.std_error:
            raise ValueError(
                f"request_std_error = {self.request_std_error}: must be 0 or more, and is a part "
                f"of std_error = {self.std_error}"
            )
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks = {self.num_blocks}: must be 2 or more")
        for rate in (self.baseline_tokens_per_s, self.candidate_tokens_per_s):
            if not 0 < rate < math.inf:
                raise ValueError(f"tokens per second = {rate}: must be positive and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEvidence:
    """Everything known about one arm at one batch size.

    Attributes:
        batch_size: Scheduled requests in the step.
        config: The arm.
        explored: Paired estimate from the search, or None if never measured.
        validated: Paired estimate on fresh blocks after selection, or None.
        predicted_tokens_per_s: The model's figure (replayed tokens per round over fitted
            step time), or None.
    """

    batch_size: int
    config: SpeculativeConfig
    explored: PairedEstimate | None = None
    validated: PairedEstimate | None = None
    predicted_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size = {self.batch_size}: must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """What a gain has to exceed before it is acted upon. All are fractions (0.01 = 1 %).

    Attributes:
        hot: Gain over unloaded off that a batch size needs before it speculates.
        restart: Weighted gain of the whole table that loading a drafter needs.
        harm: Loss against unloaded off that no batch size may show while a drafter is loaded.
        confidence: Confidence of published intervals, and 1 - the chance that any batch size
            of one search speculates although its gain is not above `hot`.
        tie: Gains this close are equal, and the smaller K wins.
    """

    hot: float = 0.01
    restart: float = 0.03
    harm: float = 0.01
    confidence: float = 0.95
    tie: float = 0.01

    def __post_init__(self) -> None:
        for name in ("hot", "restart", "harm", "tie"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} = {value}: must be at least 0 and below 1")
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"confidence = {self.confidence}: must lie between 0.5 and 1")


DEFAULT_MARGINS = Margins()
"""Margins that a decision uses when the operator has set none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The restart-class part of a decision: what is in the server's memory.

    Attributes:
        drafter: Name of the drafter, or `off` for none.
        max_num_speculative_tokens: Largest K the schedule may use.
        draft_temperature: As in `SpeculativeConfig`, one value for the whole envelope.
    """

    drafter: str = OFF_DRAFTER
    max_num_speculative_tokens: int = 0
    draft_temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCell:
    """K for one contiguous range of batch sizes, both ends included.

    Attributes:
        bs_lo: Smallest batch size of the cell.
        bs_hi: Largest, or None for the tail.
        num_speculative_tokens: K; 0 does not speculate.
        off_mode: How K = 0 is reached; None when K > 0.
        measured_at: The measured batch size the cell rests on, or None where no size in it
            was measured (interpolated or tail).
        status: Validated or provisional.
    """

    bs_lo: int
    bs_hi: int | None
    num_speculative_tokens: int
    off_mode: OffMode | None
    measured_at: int | None
    status: CellStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDecision:
    """What was decided at one measured batch size, and why.

    Attributes:
        batch_size: The measured batch size.
        chosen: The arm that is published for it.
        best_candidate: The speculating arm that was validated (may equal `chosen`).
        status: Validated or provisional.
        reason: One sentence for `spectune explain`.
    """

    batch_size: int
    chosen: SpeculativeConfig
    best_candidate: SpeculativeConfig | None
    status: CellStatus
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a decision was asked.

    Attributes:
        envelope: What could be loaded.
        candidates: The arm to decide about, by batch size; sizes without one took the best arm
            that was validated.
        weights: Share of the traffic's time at each batch size; None for uniform.
    """

    envelope: Envelope = field(default_factory=Envelope)
    candidates: Mapping[int, SpeculativeConfig] = field(default_factory=dict)
    weights: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Envelope first, then K per batch size.

    Attributes:
        envelope: What to load.
        cells: One decision per measured batch size, ascending.
        schedule: Contiguous cells from batch size 1 to an explicit tail.
        reason: Why this envelope.
        question: What was to be decided: with the evidence it gives the same decision again.
    """

    envelope: Envelope
    cells: tuple[CellDecision, ...]
    schedule: tuple[ScheduleCell, ...]
    reason: str
    question: Question

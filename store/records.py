"""The values that the store takes and gives: frozen, plain, and free of any database.

Each field is converted and checked when a record is built (see `store.fields`); a value that
cannot be stored raises `store.errors.RecordError` there. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from store import fields

RunKind = Literal["tune", "remeasure"]
RunStatus = Literal["running", "done", "failed", "interrupted"]
FinalStatus = Literal["done", "failed", "interrupted"]
Stage = Literal["explore", "validate", "remeasure"]
ProposedBy = Literal["prior", "sampler", "baseline", "validation", "incumbent", "rule"]
AcceptanceSource = Literal["replay", "engine"]
CostKind = Literal["verify", "draft", "prefill"]

_RunId = Annotated[str, fields.run_key]
_Key = Annotated[str, fields.key]
_Text = Annotated[str, fields.text]
_Time = Annotated[datetime, fields.utc_time]
_Flag = Annotated[bool, fields.flag]
_Count = Annotated[int, fields.whole(0)]
_Positive = Annotated[int, fields.whole(1)]
_Amount = Annotated[float, fields.real(0.0)]
_OptionalAmount = Annotated[float | None, fields.real_or_none(0.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(fields.Record):
    """One run of the tuner: everything it measures and publishes refers to it.

    Attributes:
        run_id: UUID.
        kind: A search, or a second measurement of what a search chose.
        started_at: When the run began.
        target_name: Name of the target model.
        target_fingerprint: Digest over the target's weights and tokenizer.
        device_name: Name of the device the run measures on.
        device_fingerprint: Digest over the device's facts.
        workload_source: `default` or where the requests came from.
        workload_fingerprint: Digest over the requests.
        seed: Seed of the run.
        dtype: Number format of the target, for example `bfloat16`.
        tuner_version: Version that ran.
        settings: The resolved settings, as JSON values.
        status: `running` until `Store.finish_run`.
        reason: Why the run ended as it did, or None.
        finished_at: When it ended, or None while it runs.
    """

    run_id: _RunId
    kind: RunKind
    started_at: _Time
    target_name: _Key
    target_fingerprint: _Key
    device_name: _Key
    device_fingerprint: _Key
    workload_source: _Key
    workload_fingerprint: _Key
    seed: _Count
    dtype: _Key
    tuner_version: _Key
    settings: Annotated[Mapping[str, Any], fields.json_object]
    status: RunStatus = "running"
    reason: _Text | None = None
    finished_at: _Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRecord(fields.Record):
    """One ABBA block of one arm against unloaded off: a line of the ledger.

    Attributes:
        run_id: The run that measured it.
        batch_size: Scheduled requests in the step.
        drafter: Name of the drafter, or `off`.
        num_speculative_tokens: K of the candidate.
        draft_temperature: Temperature the drafter samples at, or None to follow the request.
        stage: What the block was measured for.
        trial_number: Number of the trial in the study, or None outside it.
        proposed_by: What asked for the arm.
        block_index: Position of the block within its comparison.
        baseline_tokens: Tokens the baseline emitted in its windows.
        baseline_s: Seconds its decode rounds took.
        candidate_tokens: Tokens the candidate emitted.
        candidate_s: Seconds its decode rounds took.
        expected_tokens: Tokens the candidate would emit on average for the same work, by replay;
            None where that was not known.
        num_rounds: Rounds of the candidate, each row for itself; None in blocks of older stores.
        num_drafts: Rounds in which the candidate drafted.
        num_draft_tokens: Tokens it drafted.
        num_accepted_tokens: Draft tokens that were accepted.
        created_at: When the block ended.
        disturbed: Something else used the device meanwhile, so the block decides nothing.
    """

    run_id: _RunId
    batch_size: _Positive
    drafter: _Key
    num_speculative_tokens: _Count
    draft_temperature: _OptionalAmount
    stage: Stage
    trial_number: _Count | None
    proposed_by: ProposedBy
    block_index: _Count
    baseline_tokens: _Count
    baseline_s: _Amount
    candidate_tokens: _Count
    candidate_s: _Amount
    expected_tokens: _OptionalAmount
    num_rounds: _Count | None
    num_drafts: _Count
    num_draft_tokens: _Count
    num_accepted_tokens: _Count
    created_at: _Time
    disturbed: _Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord(fields.Record):
    """A trial that gave no measurement.

    Attributes:
        run_id: The run it belongs to.
        batch_size: Scheduled requests in the step.
        drafter: Name of the drafter.
        num_speculative_tokens: K.
        draft_temperature: Temperature the drafter samples at, or None.
        reason: One line for the operator.
        created_at: When it failed.
    """

    run_id: _RunId
    batch_size: _Positive
    drafter: _Key
    num_speculative_tokens: _Count
    draft_temperature: _OptionalAmount
    reason: _Text
    created_at: _Time


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRecord(fields.Record):
    """How a drafter's tokens fared on one task and temperature, for one K.

    Attributes:
        run_id: The run it belongs to.
        drafter: Name of the drafter.
        draft_temperature: Temperature the drafter samples at, or None to follow the request.
        num_speculative_tokens: K.
        task: Task bucket of the requests.
        temperature: Temperature of the requests.
        num_requests: Requests it rests on.
        num_output_tokens: Output tokens of those requests.
        expected_rounds: Verify rounds for those tokens (an expectation when replayed).
        tokens_per_round: Output tokens per round, a ratio of sums.
        tokens_per_round_std_error: Its standard error, or None where it cannot be told.
        num_drafts: Rounds that drafted at least one token (an expectation when replayed).
        num_draft_tokens: Tokens drafted (an expectation when replayed).
        num_accepted_tokens_per_pos: Draft tokens accepted at each position of the draft.
        source: `replay` for an exact expectation, `engine` for counters of real rounds.
    """

    run_id: _RunId
    drafter: _Key
    draft_temperature: _OptionalAmount
    num_speculative_tokens: _Count
    task: _Key
    temperature: _Amount
    num_requests: _Count
    num_output_tokens: _Count
    expected_rounds: _Amount
    tokens_per_round: _Amount
    tokens_per_round_std_error: _OptionalAmount
    num_drafts: _Amount
    num_draft_tokens: _Amount
    num_accepted_tokens_per_pos: Annotated[tuple[float, ...], fields.reals(0.0)]
    source: AcceptanceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRecord(fields.Record):
    """What one kind of step costs at one size.

    Attributes:
        run_id: The run it belongs to.
        kind: Verify step of the target, draft step, or prefill.
        drafter: Name of the drafter, or None for the target's own steps.
        batch_size: Scheduled requests in the step.
        num_tokens: Tokens in the step over all requests.
        num_speculative_tokens: K.
        seconds_median: Median of the samples, in seconds.
        seconds_low: Lower end of their interval, in seconds.
        seconds_high: Upper end of their interval, in seconds.
        num_samples: Steps that were timed.
    """

    run_id: _RunId
    kind: CostKind
    drafter: _Key | None
    batch_size: _Positive
    num_tokens: _Count
    num_speculative_tokens: _Count
    seconds_median: _Amount
    seconds_low: _Amount
    seconds_high: _Amount
    num_samples: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord(fields.Record):
    """What the model expected of an arm before it was measured.

    Attributes:
        run_id: The run it belongs to.
        batch_size: Scheduled requests in the step.
        drafter: Name of the drafter.
        num_speculative_tokens: K.
        draft_temperature: Temperature the drafter samples at, or None.
        tokens_per_s: Output tokens per second expected of the arm.
        off_tokens_per_s: Output tokens per second expected of unloaded off.
        request_std_error: Standard error of the log rate from the choice of requests.
    """

    run_id: _RunId
    batch_size: _Positive
    drafter: _Key
    num_speculative_tokens: _Count
    draft_temperature: _OptionalAmount
    tokens_per_s: _Amount
    off_tokens_per_s: _Amount
    request_std_error: _Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSlot:
    """The place a document is about to take; the document carries these values.

    Attributes:
        epoch: Random id of the store.
        generation: Number the document gets within its scope.
        previous: Generation before it, or None for the first.
        created_at: Time of publication.
    """

    epoch: str
    generation: int
    previous: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One published generation, as it was and will stay.

    Attributes:
        scope: What the document is for: target, device and workload scope in one key.
        epoch: Random id of the store; generations compare only within one epoch.
        generation: 1, 2, 3, ... within the scope, in order of commit.
        previous: Generation before it, or None for the first.
        run_id: The run whose evidence it rests on.
        created_at: Time of publication.
        document: The exact bytes that are served.
        sha256: Hexadecimal digest of `document`.
    """

    scope: str
    epoch: str
    generation: int
    previous: int | None
    run_id: str
    created_at: datetime
    document: bytes
    sha256: str

"""Records for the store's tests: one of each kind, and hypothesis strategies for any."""

import types
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from store.fields import INT64_MAX
from store.records import (
    AcceptanceRecord,
    CostRecord,
    FailureRecord,
    MeasurementRecord,
    PredictionRecord,
    RunRecord,
)

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

RecordT = TypeVar("RecordT")


def make_run(**changes: Any) -> RunRecord:
    """A run that has just begun, with an id of its own."""
    values: dict[str, Any] = {
        "run_id": str(uuid.uuid4()),
        "kind": "tune",
        "started_at": NOON,
        "target_name": "smollm2-135m-instruct",
        "target_fingerprint": "t" * 64,
        "device_name": "cpu",
        "device_fingerprint": "d" * 64,
        "workload_source": "default",
        "workload_fingerprint": "w" * 64,
        "seed": 7,
        "dtype": "bfloat16",
        "tuner_version": "0.1.0",
        "settings": {"batch_sizes": [1, 4, 16], "margin": 0.01},
    }
    return RunRecord(**values | changes)


def make_measurement(run_id: str, /, **changes: Any) -> MeasurementRecord:
    """One block of an arm with K = 3 at batch size 4."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "batch_size": 4,
        "drafter": "ngram",
        "num_speculative_tokens": 3,
        "draft_temperature": None,
        "stage": "explore",
        "trial_number": 2,
        "proposed_by": "sampler",
        "block_index": 0,
        "baseline_tokens": 100,
        "baseline_s": 1.0,
        "candidate_tokens": 130,
        "candidate_s": 1.1,
        "expected_tokens": None,
        "num_rounds": 40,
        "num_drafts": 40,
        "num_draft_tokens": 120,
        "num_accepted_tokens": 90,
        "created_at": NOON,
        "disturbed": False,
    }
    return MeasurementRecord(**values | changes)


def make_failure(run_id: str, /, **changes: Any) -> FailureRecord:
    """A trial that failed."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "batch_size": 16,
        "drafter": "layer-skip-8",
        "num_speculative_tokens": 5,
        "draft_temperature": 0.7,
        "reason": "the draft's logits are not finite",
        "created_at": NOON,
    }
    return FailureRecord(**values | changes)


def make_acceptance(run_id: str, /, **changes: Any) -> AcceptanceRecord:
    """Replayed acceptance of a drafter on one task."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "drafter": "layer-skip-8",
        "draft_temperature": None,
        "num_speculative_tokens": 2,
        "task": "code",
        "temperature": 0.7,
        "num_requests": 8,
        "num_output_tokens": 512,
        "expected_rounds": 300.5,
        "tokens_per_round": 1.7,
        "tokens_per_round_std_error": 0.02,
        "num_drafts": 301.0,
        "num_draft_tokens": 601.0,
        "num_accepted_tokens_per_pos": (150.25, 60.5),
        "source": "replay",
    }
    return AcceptanceRecord(**values | changes)


def make_cost(run_id: str, /, **changes: Any) -> CostRecord:
    """Time of a verify step."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "kind": "verify",
        "drafter": None,
        "batch_size": 4,
        "num_tokens": 16,
        "num_speculative_tokens": 3,
        "seconds_median": 0.02,
        "seconds_low": 0.019,
        "seconds_high": 0.022,
        "num_samples": 9,
    }
    return CostRecord(**values | changes)


def make_prediction(run_id: str, /, **changes: Any) -> PredictionRecord:
    """The model's figure for one arm."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "batch_size": 4,
        "drafter": "ngram",
        "num_speculative_tokens": 3,
        "draft_temperature": None,
        "tokens_per_s": 120.5,
        "off_tokens_per_s": 100.25,
        "request_std_error": 0.03,
    }
    return PredictionRecord(**values | changes)


def any_record(record_type: type[RecordT], **fixed: Any) -> st.SearchStrategy[RecordT]:
    """Records with every field at the edges of what it may hold, but for the fixed ones."""
    fields = {
        name: st.just(fixed[name]) if name in fixed else _any_value(name, hint)
        for name, hint in get_type_hints(record_type).items()
    }
    return st.builds(record_type, **fields)


def _any_value(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not types.NoneType)
        return st.none() | _any_value(name, inner)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(_AMOUNTS, max_size=9).map(tuple)
    if name == "run_id":
        return st.uuids().map(str)
    if hint is int:
        return st.integers(1 if name == "batch_size" else 0, INT64_MAX)
    return _BY_TYPE.get(hint, _SETTINGS)


_AMOUNTS = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
_NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40
)
_TIMES = st.datetimes(
    min_value=datetime(2, 1, 1),
    max_value=datetime(9998, 12, 31),
    timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
_SETTINGS = st.dictionaries(
    _NAMES,
    st.recursive(
        st.none() | st.booleans() | st.integers(-INT64_MAX, INT64_MAX) | _AMOUNTS | _NAMES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    float: _AMOUNTS,
    str: _NAMES,
    bool: st.booleans(),
    datetime: _TIMES,
}

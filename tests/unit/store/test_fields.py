"""Tests of store.fields: what values become, and which are refused."""

import math
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from store import fields
from store.errors import RecordError, StoreError
from tests.contract.store_samples import make_cost, make_measurement, make_run

RUN_ID = "8c9d0d3a-7b1e-4b3e-9d53-0a8f6f9f0c11"


class TorchLikeScalar:
    """Behaves as a tensor of one element does: no number, but it turns into one."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        """The element."""
        return self._value

    def __float__(self) -> float:
        return float(self._value)

    def __index__(self) -> int:
        if not isinstance(self._value, int):
            raise TypeError("only integer tensors can be an index")
        return self._value


class Color(StrEnum):
    """A text with a type of its own."""

    RED = "red"


def test_numpy_and_torch_scalars_become_plain_numbers() -> None:
    """A record holds int, float and bool, whatever it was given (D15)."""
    record = make_measurement(
        RUN_ID,
        batch_size=np.int64(4),
        baseline_tokens=TorchLikeScalar(100),
        baseline_s=np.float32(0.5),
        candidate_s=TorchLikeScalar(0.25),
        draft_temperature=np.float64(0.7),
        disturbed=np.bool_(True),
    )
    assert [type(getattr(record, name)) for name in ("batch_size", "baseline_tokens")] == [int] * 2
    assert type(record.baseline_s) is type(record.candidate_s) is float
    assert type(record.draft_temperature) is float
    assert record.disturbed is True
    assert (record.batch_size, record.baseline_tokens) == (4, 100)
    assert (record.baseline_s, record.candidate_s) == (0.5, 0.25)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_missing_numbers(value: float) -> None:
    """NaN and infinity become None where that is allowed, and are refused elsewhere (D15)."""
    assert make_measurement(RUN_ID, draft_temperature=value).draft_temperature is None
    with pytest.raises(RecordError, match=r"baseline_s = .*: must be a finite number"):
        make_measurement(RUN_ID, baseline_s=value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch_size", 0, "batch_size = 0: must be a whole number between 1 and"),
        ("batch_size", 2**63, "must be a whole number between 1 and"),
        ("batch_size", 4.0, "batch_size = 4.0: must be a whole number"),
        ("batch_size", "4", "batch_size = '4': must be a whole number"),
        ("batch_size", None, "batch_size = None: must be a whole number"),
        ("num_drafts", -1, "num_drafts = -1: must be a whole number between 0 and"),
        ("baseline_s", -0.5, "baseline_s = -0.5: must be 0 or more"),
        ("baseline_s", "1.0", "baseline_s = '1.0': must be a number"),
        ("baseline_s", 10**400, "must be a number"),
        ("baseline_s", np.zeros(2), "must be a number"),
        ("draft_temperature", -1.0, "draft_temperature = -1.0: must be 0 or more"),
        ("disturbed", "no", "disturbed = 'no': must be true or false"),
        ("disturbed", np.zeros(2), "must be true or false"),
        ("drafter", "", "drafter = '': must be text that is not empty"),
        ("drafter", 7, "drafter = 7: must be text"),
        ("drafter", "a\0b", "must be text without NUL characters"),
        ("drafter", "\ud800", "must be text that can be written as UTF-8"),
        ("stage", "exploit", "stage = 'exploit': must be one of explore, validate, remeasure"),
        ("run_id", "7", "run_id = '7': must be a UUID"),
        ("created_at", datetime(2026, 1, 1), "must be a time with its zone"),
        ("created_at", "2026-01-01", "must be a time with its zone"),
        (
            "created_at",
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            "must be a time between the years 1 and 9999",
        ),
    ],
)
def test_refused(field: str, value: Any, message: str) -> None:
    """A refusal names the field, the value and what it must be."""
    with pytest.raises(RecordError, match=message) as caught:
        make_measurement(RUN_ID, **{field: value})
    assert isinstance(caught.value, StoreError)
    assert isinstance(caught.value, ValueError)


def test_refusal_of_a_long_value_stays_one_short_line() -> None:
    """A message does not repeat a huge value."""
    with pytest.raises(RecordError) as caught:
        make_measurement(RUN_ID, drafter=["x" * 50_000])
    assert len(str(caught.value)) < 120


def test_edges_are_accepted() -> None:
    """The largest integer, the smallest float and zero are values like any other."""
    record = make_cost(RUN_ID, num_tokens=2**63 - 1, seconds_low=5e-324, seconds_high=0)
    assert record.num_tokens == 2**63 - 1
    assert record.seconds_low == 5e-324
    assert type(record.seconds_high) is float


def test_times_become_utc() -> None:
    """The same moment, in UTC."""
    local = datetime(2026, 3, 1, 18, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    record = make_measurement(RUN_ID, created_at=local)
    assert record.created_at == local
    assert record.created_at.tzinfo is UTC


def test_text_loses_its_subclass() -> None:
    """An enumeration's member is stored as its text."""
    record = make_measurement(RUN_ID, drafter=Color.RED)
    assert type(record.drafter) is str
    assert record.drafter == "red"


def test_sequences_become_tuples_of_floats() -> None:
    """An array is taken; one with a bad element is refused by its index."""
    convert = fields.reals(0.0)
    assert convert("x", np.array([1, 2])) == (1.0, 2.0)
    assert convert("x", []) == ()
    with pytest.raises(RecordError, match=r"x\[1\] = nan: must be a finite number"):
        convert("x", [0.0, math.nan])
    with pytest.raises(RecordError, match="x = 3: must be a sequence of numbers"):
        convert("x", 3)


def test_settings_become_plain_json() -> None:
    """Scalars of other libraries become numbers, NaN becomes null, tuples become lists."""
    run = make_run(
        settings={
            "sizes": (1, np.int32(4)),
            "margin": np.float32(0.5),
            "limit": math.inf,
            "longdouble": np.longdouble(2.5),
            "share": Fraction(1, 4),
            "flag": np.bool_(True),
            "tensor": TorchLikeScalar(1.5),
            "nested": {"none": None, "off": False, "name": Color.RED},
            "seed": 2**64 - 1,
        }
    )
    assert run.settings == {
        "sizes": [1, 4],
        "margin": 0.5,
        "limit": None,
        "longdouble": 2.5,
        "share": 0.25,
        "flag": True,
        "tensor": 1.5,
        "nested": {"none": None, "off": False, "name": "red"},
        "seed": 2**64 - 1,
    }
    assert type(run.settings["nested"]["name"]) is str
    assert run.settings["nested"]["off"] is False


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "settings = .*: must be a mapping"),
        ({1: 2}, "key of settings = 1: must be text"),
        ({"a": {"b": [object()]}}, r"settings\.a\.b\[0\] = .*: must be text, a number"),
        ({"a": 2**64}, r"settings\.a = .*: must be a whole number of 64 bits"),
        ({"a": np.zeros(2)}, r"settings\.a = .*: must be a single number"),
        ({"a": "\0"}, r"settings\.a = .*: must be text without NUL"),
    ],
)
def test_settings_refused(value: Any, message: str) -> None:
    """A setting that is no JSON value is named by its path."""
    with pytest.raises(RecordError, match=message):
        make_run(settings=value)


def test_settings_are_a_copy() -> None:
    """A later change to what was given does not reach the record."""
    given: dict[str, Any] = {"sizes": [1]}
    run = make_run(settings=given)
    given["sizes"].append(4)
    assert run.settings == {"sizes": [1]}


def test_field_without_converter_is_a_programming_error() -> None:
    """A record type must say how each field is converted."""

    class Careless(fields.Record):
        size: int

    with pytest.raises(TypeError, match="names its converter"):
        fields.converters(Careless)

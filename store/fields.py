"""What a field of a record may hold, and how a value is brought into that form.

Measurements arrive as numpy or torch scalars, and sometimes as NaN. A database driver answers
those with errors of its own, or stores something else, so every record converts its fields
when it is built: a record that exists can be stored. A field names its converter in its type,
for example `Annotated[int, whole(1)]`.
"""

from __future__ import annotations

import math
import numbers
import operator
import types
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from store.errors import RecordError

Converter = Callable[[str, object], object]
"""Takes the field's name (for messages) and a value; returns the plain value or raises."""

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

_CONVERTERS: dict[type, dict[str, Converter]] = {}  # Filled as record types are first used.


class Record:
    """Base of the records: converts every field on construction."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, convert in converters(type(self)).items():
            # The dataclasses are frozen; this is the one moment at which they may change.
            object.__setattr__(self, name, convert(name, getattr(self, name)))


def whole(minimum: int = 0) -> Callable[[str, object], int]:
    """Converter to an integer of 64 bits, at least `minimum`."""

    def convert(name: str, value: object) -> int:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except (TypeError, RuntimeError) as error:
            raise _refuse(name, value, "a whole number") from error
        if not minimum <= number <= INT64_MAX:
            raise _refuse(name, value, f"a whole number between {minimum} and {INT64_MAX}")
        return number

    return convert


def real(minimum: float | None = None) -> Callable[[str, object], float]:
    """Converter to a finite float, at least `minimum`."""

    def convert(name: str, value: object) -> float:
        number = _to_float(name, value)
        if not math.isfinite(number):
            raise _refuse(name, value, "a finite number")
        if minimum is not None and number < minimum:
            raise _refuse(name, value, f"{minimum:g} or more")
        return number

    return convert


def real_or_none(minimum: float | None = None) -> Callable[[str, object], float | None]:
    """Like `real`, but an absent, NaN or infinite value becomes None."""
    convert_finite = real(minimum)

    def convert(name: str, value: object) -> float | None:
        if value is None or not math.isfinite(_to_float(name, value)):
            return None
        return convert_finite(name, value)

    return convert


def reals(minimum: float | None = None) -> Callable[[str, object], tuple[float, ...]]:
    """Converter of a sequence to a tuple of finite floats."""
    convert_one = real(minimum)

    def convert(name: str, value: object) -> tuple[float, ...]:
        try:
            items = list(value)  # type: ignore[call-overload]
        except TypeError as error:
            raise _refuse(name, value, "a sequence of numbers") from error
        return tuple(convert_one(f"{name}[{i}]", item) for i, item in enumerate(items))

    return convert


def flag(name: str, value: object) -> bool:
    """Converter to a bool; 0 and 1 count."""
    try:
        if value == 0 or value == 1:
            return bool(value)
    except (ValueError, RuntimeError) as error:  # Arrays have no single truth.
        raise _refuse(name, value, "true or false") from error
    raise _refuse(name, value, "true or false")


def text(name: str, value: object) -> str:
    """Converter to a plain str that any database can hold."""
    if not isinstance(value, str):
        raise _refuse(name, value, "text")
    plain = str.__str__(value)
    if "\0" in plain:
        raise _refuse(name, value, "text without NUL characters")
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        raise _refuse(name, value, "text that can be written as UTF-8") from error
    return plain


def key(name: str, value: object) -> str:
    """Like `text`, and not empty."""
    plain = text(name, value)
    if not plain:
        raise _refuse(name, value, "text that is not empty")
    return plain


def one_of(options: tuple[str, ...]) -> Callable[[str, object], str]:
    """Converter that lets only these texts pass; a `Literal` field has it by itself."""

    def convert(name: str, value: object) -> str:
        plain = text(name, value)
        if plain not in options:
            raise _refuse(name, value, f"one of {', '.join(options)}")
        return plain

    return convert


def run_key(name: str, value: object) -> str:
    """Converter to a UUID in its usual lower-case spelling."""
    try:
        return str(uuid.UUID(text(name, value)))
    except ValueError as error:
        raise _refuse(name, value, "a UUID") from error


def utc_time(name: str, value: object) -> datetime:
    """Converter to UTC; a time without a zone is refused, since it could mean any."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise _refuse(name, value, "a time with its zone")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise _refuse(name, value, "a time between the years 1 and 9999 in UTC") from error


def json_object(name: str, value: object) -> dict[str, Any]:
    """Converter to a JSON object of plain values; NaN and infinity become null."""
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a mapping")
    return {text(f"key of {name}", k): _json_value(f"{name}.{k}", v) for k, v in value.items()}


def converters(record_type: type) -> dict[str, Converter]:
    """The converter of each field of a record type."""
    if record_type not in _CONVERTERS:
        hints = get_type_hints(record_type, include_extras=True)
        _CONVERTERS[record_type] = {name: _converter(hint) for name, hint in hints.items()}
    return _CONVERTERS[record_type]


def _converter(hint: Any) -> Converter:
    if get_origin(hint) is Annotated:
        converter: Converter = hint.__metadata__[0]
        return converter
    if get_origin(hint) is Literal:
        return one_of(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not types.NoneType)
        return _or_none(_converter(inner))
    raise TypeError(f"{hint}: a record's field names its converter")


def _or_none(convert_value: Converter) -> Converter:
    def convert(name: str, value: object) -> object:
        return None if value is None else convert_value(name, value)

    return convert


def _to_float(name: str, value: object) -> float:
    if isinstance(value, (str, bytes)):
        raise _refuse(name, value, "a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _refuse(name, value, "a number") from error


def _json_value(name: str, value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, numbers.Integral):
        if abs(int(value)) > UINT64_MAX:
            raise _refuse(name, value, "a whole number of 64 bits")
        return int(value)
    if isinstance(value, numbers.Real):
        return real_or_none()(name, value)
    if isinstance(value, Mapping):
        return json_object(name, value)
    if isinstance(value, (list, tuple)):
        return [_json_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
    scalar = getattr(value, "item", None)
    if callable(scalar):  # numpy and torch scalars alike, without importing either
        try:
            return _json_value(name, scalar())
        except (ValueError, RuntimeError) as error:
            raise _refuse(name, value, "a single number") from error
    raise _refuse(name, value, "text, a number, true, false, null, a list or a mapping")


def _refuse(name: str, value: object, expected: str) -> RecordError:
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return RecordError(f"{name} = {shown}: must be {expected}")

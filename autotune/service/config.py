"""Configuration of the service: a TOML file, and the environment over it."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from autotune.errors import ConfigError
from autotune.service.timetable import parse_schedule
from autotune.settings import STORE_FILE, STUDIES_FILE, TuneSettings, state_dir
from store.errors import StoreLocationError
from store.location import parse_location

DEFAULT_CONFIG = Path("/etc/spectuned/spectuned.toml")
CONFIG_VARIABLE = "SPECTUNED_CONFIG"
_PREFIX = "SPECTUNED_"
_NESTING = "__"
_READ_ELSEWHERE = frozenset({CONFIG_VARIABLE, "SPECTUNED_CACHE"})
_SHOWN_CHARACTERS = 80


class ServiceConfig(BaseSettings):
    """What the service runs on.

    Every key can be given in the environment too, as `SPECTUNED_<KEY>`, and one of the `tune`
    table as `SPECTUNED_TUNE__<KEY>`; the environment wins.

    Attributes:
        state: Folder of the store unless that is named.
        store: Path or `sqlite:///` URL of the store; the search's own file lies beside it. None
            is `spectuned.db` in the state folder.
        serving_engine: The engine that will follow what is published. With one, `tune.traffic`
            is needed: nothing found on the shipped workload is published for an engine.
        schedule: Hours between searches, or a crontab expression.
        worker_timeout_s: Seconds a search may take.
        worker_memory_bytes: Address space a search may take, where it runs on the CPU (the
            CUDA driver reserves far more than it uses); None does not limit it.
        tune: Settings of the search.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_NESTING,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    state: Path = Field(default_factory=state_dir)
    store: str | None = None
    serving_engine: Literal["vllm", "sglang", "tensorrt-llm"] | None = None
    schedule: float | str = 24.0
    worker_timeout_s: float = Field(default=7200.0, gt=0, allow_inf_nan=False)
    worker_memory_bytes: int | None = Field(default=None, gt=0)
    tune: TuneSettings = Field(default_factory=TuneSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment, then the file's values, which come as arguments."""
        return env_settings, init_settings

    @field_validator("store")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_location(value)
            except StoreLocationError as error:
                raise ValueError(str(error)) from error
        return value

    @field_validator("schedule", mode="before")
    @classmethod
    def _trigger(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:  # The environment gives numbers as text.
                value = float(value)
            except ValueError:
                pass
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            parse_schedule(value)
        return value

    @property
    def store_location(self) -> str:
        """Where the store is."""
        return self.store or str(self.state / STORE_FILE)

    @property
    def studies(self) -> Path:
        """The file of the search's studies, beside the store."""
        return parse_location(self.store_location).parent / STUDIES_FILE


def load_config(path: Path | None = None) -> ServiceConfig:
    """Read the configuration.

    Args:
        path: The file; None takes `$SPECTUNED_CONFIG`, else `DEFAULT_CONFIG` if it exists.

    Raises:
        ConfigError: One line that names for every fault the file or variable, the key, its
            value and the remedy.
    """
    file, values = _read_file(path)
    source = "no configuration file" if file is None else str(file)
    faults = [
        _fault(source, (key,), value, _unknown(key, ServiceConfig.model_fields))
        for key, value in values.items()
        if key not in ServiceConfig.model_fields
    ] + [
        f"environment: {name}: {_unknown(name, _known_variables())}"
        for name in _variables()
        if not _is_known(name)
    ]
    if faults:
        raise ConfigError("; ".join(faults))
    try:
        return ServiceConfig(**values)
    except ValidationError as error:
        # Not `from error`: its text shows values that may hold a password.
        raise ConfigError("; ".join(_explain(source, item) for item in error.errors())) from None
    except SettingsError as error:
        raise ConfigError(
            f"environment: {error}: lists and tables are written there as JSON"
        ) from None


def _read_file(path: Path | None) -> tuple[Path | None, dict[str, Any]]:
    """The file that was read, if any, and its values."""
    if path is None and (named := os.environ.get(CONFIG_VARIABLE)):
        path = Path(named)
    if path is None and not os.path.exists(DEFAULT_CONFIG):
        return None, {}
    path = path or DEFAULT_CONFIG
    try:
        return path, tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}: name the configuration with "
            f"{CONFIG_VARIABLE}, or put it at {DEFAULT_CONFIG}"
        ) from error
    except ValueError as error:  # Neither TOML nor UTF-8.
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def _explain(source: str, error: ErrorDetails) -> str:
    location = error["loc"]
    problem = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        problem = _unknown(str(location[-1]), TuneSettings.model_fields)
    return _fault(_origin(source, location), location, error["input"], problem)


def _fault(source: str, location: Iterable[int | str], value: object, problem: str) -> str:
    key = ".".join(map(str, location))
    return f"{source}: {key} = {_shown(value)}: {problem}"


def _origin(source: str, location: tuple[int | str, ...]) -> str:
    """The variable that gave a value, else the file."""
    present = _variables()
    for depth in range(len(location), 0, -1):
        name = _PREFIX + _NESTING.join(map(str, location[:depth])).upper()
        if name in present:
            return f"environment ({name})"
    return source


def _variables() -> list[str]:
    """Our variables that are set; their case does not matter."""
    names = (name.upper() for name, value in os.environ.items() if value)
    return sorted(name for name in names if name.startswith(_PREFIX))


def _known_variables() -> list[str]:
    return [_PREFIX + field.upper() for field in ServiceConfig.model_fields]


def _is_known(name: str) -> bool:
    # What follows the name of a table is checked with the table.
    return name in _READ_ELSEWHERE or name.split(_NESTING)[0] in _known_variables()


def _unknown(name: str, known: Mapping[str, object] | list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
    return f"unknown: remove it, or {remedy}"


def _shown(value: object) -> str:
    text = repr(value)
    if "://" in text:
        return "(a URL, not shown: it may hold a password)"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."

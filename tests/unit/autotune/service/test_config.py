"""The service's configuration: where values come from, and how faults are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.service import config as service_config
from autotune.service.config import ServiceConfig, load_config


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration but the test's own."""
    for name in list(os.environ):
        if name.upper().startswith("SPECTUNED_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(service_config, "DEFAULT_CONFIG", tmp_path / "etc.toml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration file, not written yet."""
    return tmp_path / "spectuned.toml"


def refusal(file: Path, text: str) -> str:
    """The line that a file with this text is refused with."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_without_any_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing needs to be configured; the store lies in the state folder."""
    monkeypatch.setenv("SPECTUNED_STATE", str(tmp_path))
    config = load_config()
    assert config.store_location == str(tmp_path / "spectuned.db")
    assert config.studies == tmp_path / "studies.db"
    assert (config.schedule, config.worker_timeout_s) == (24.0, 7200.0)
    assert config.serving_engine is None
    assert config.worker_memory_bytes is None


def test_values_of_the_file(file: Path) -> None:
    """Every key can be given in the file."""
    file.write_text(
        """
        state = "/srv/state"
        store = "sqlite:////srv/other.db"
        serving_engine = "vllm"
        schedule = "30 3 * * sat"
        worker_timeout_s = 600
        worker_memory_bytes = 8_000_000_000
        [tune]
        target = "/models/llama"
        traffic = "/var/log/requests.jsonl"
        batch_sizes = [8, 1]
        [tune.drafters]
        small = "/models/small"
        """
    )
    config = load_config(file)
    assert config.store_location == "sqlite:////srv/other.db"
    assert config.studies == Path("/srv/studies.db")
    assert (config.serving_engine, config.schedule) == ("vllm", "30 3 * * sat")
    assert (config.worker_timeout_s, config.worker_memory_bytes) == (600.0, 8_000_000_000)
    assert (config.tune.target, config.tune.batch_sizes) == ("/models/llama", (1, 8))
    assert config.tune.drafters == {"small": Path("/models/small")}


def test_environment_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable replaces the file's value and leaves its neighbours alone."""
    file.write_text("schedule = 6\nworker_timeout_s = 60\n[tune]\nseed = 1\ntrials = 3\n")
    monkeypatch.setenv("SPECTUNED_SCHEDULE", "1.5")
    monkeypatch.setenv("SPECTUNED_TUNE__SEED", "7")
    monkeypatch.setenv("SPECTUNED_TUNE__BATCH_SIZES", "[2]")
    config = load_config(file)
    assert (config.schedule, config.worker_timeout_s) == (1.5, 60.0)
    assert (config.tune.seed, config.tune.trials, config.tune.batch_sizes) == (7, 3, (2,))


def test_file_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument comes before the variable, the variable before the system's file."""
    service_config.DEFAULT_CONFIG.write_text("schedule = 1\n")
    assert load_config().schedule == 1.0
    named = file.with_name("named.toml")
    named.write_text("schedule = 2\n")
    monkeypatch.setenv("SPECTUNED_CONFIG", str(named))
    assert load_config().schedule == 2.0
    file.write_text("schedule = 3\n")
    assert load_config(file).schedule == 3.0


def test_named_file_that_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was asked for must be there."""
    monkeypatch.setenv("SPECTUNED_CONFIG", str(file))
    with pytest.raises(ConfigError, match=f"^{file} cannot be read: No such file or directory: "):
        load_config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedul = 12", "schedul = 12: unknown: remove it, or did you mean schedule?"),
        ("_env_file = 'x'", "_env_file = 'x': unknown: remove it, or use one of state, store, "),
        ("[tune]\nsede = 3", "tune.sede = 3: unknown: remove it, or did you mean seed?"),
        ("[tune]\ntrials = 0", "tune.trials = 0: Input should be greater than or equal to 1"),
        (
            "[tune]\nbatch_sizes = [0]",
            "tune.batch_sizes = [0]: needs at least one size, each from 1 to 1024",
        ),
        (
            "serving_engine = 'tgi'",
            "serving_engine = 'tgi': Input should be 'vllm', 'sglang' or 'tensorrt-llm'",
        ),
        (
            "worker_timeout_s = inf",
            "worker_timeout_s = inf: Input should be a finite number",
        ),
        ("worker_timeout_s = -1", "worker_timeout_s = -1: Input should be greater than 0"),
        ("schedule = 0", "schedule = 0: hours between runs must be above 0 and at most 8784"),
        ("schedule = 'daily'", "schedule = 'daily': neither hours between runs nor a crontab"),
        (
            "schedule = '0 3 * * 1'",
            "schedule = '0 3 * * 1': write the days of the week as names, for example mon-fri",
        ),
        ("store = ':memory:'", "store = ':memory:': the store needs a file: give a path or"),
    ],
)
def test_faults_of_the_file(file: Path, text: str, message: str) -> None:
    """The line names file, key and value, and says what to write instead."""
    assert refusal(file, text).startswith(f"{file}: {message}")


def test_every_fault_is_named(file: Path) -> None:
    """Faults are told together, not one per start."""
    message = refusal(file, "worker_timeout_s = 0\n[tune]\nseed = 'x'\n")
    assert "worker_timeout_s = 0: " in message
    assert "tune.seed = 'x': " in message


def test_password_of_a_store_is_not_shown(file: Path) -> None:
    """A URL is never repeated, not even under a key that does not exist."""
    url = "postgresql://tuner:secret@host/db"
    assert "secret" not in refusal(file, f"store = '{url}'")
    assert "a postgresql store is not supported" in refusal(file, f"store = '{url}'")
    assert "secret" not in refusal(file, f"stoer = '{url}'")


def test_long_value_is_cut(file: Path) -> None:
    """A value that is a book does not become one in the log."""
    assert len(refusal(file, f"serving_engine = '{'x' * 9000}'")) < 400


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"schedule = \n", "Invalid value (at line 1, column 12)"),
        (b"schedule = '\xff'", "codec can't decode byte 0xff"),
    ],
)
def test_file_that_is_no_toml(file: Path, content: bytes, problem: str) -> None:
    """The place of the mistake is told."""
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file} is not a TOML file: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SPECTUNED_SCHEDULE", "often", "(SPECTUNED_SCHEDULE): schedule = 'often': neither"),
        ("SPECTUNED_TUNE__SEED", "x", "(SPECTUNED_TUNE__SEED): tune.seed = 'x': Input should"),
        ("SPECTUNED_TUNE__SEDE", "1", "tune.sede = '1': unknown: remove it, or did you mean"),
        ("SPECTUNED_TUNE", "{", 'error parsing value for field "tune"'),
        (
            "SPECTUNED_SCHEDUL",
            "1",
            "SPECTUNED_SCHEDUL: unknown: remove it, or did you mean SPECTUNED_SCHEDULE?",
        ),
    ],
)
def test_faults_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """The line names the variable rather than a file."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert str(caught.value).startswith("environment")
    assert message in str(caught.value)


def test_variables_of_other_parts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's variable is not the service's, and an empty one counts as unset."""
    monkeypatch.setenv("SPECTUNED_CACHE", "/var/cache/spectuned")
    monkeypatch.setenv("SPECTUNED_SERVING_ENGINE", "")
    assert load_config().serving_engine is None


def test_configuration_is_immutable() -> None:
    """Nothing changes the configuration under a running service."""
    with pytest.raises(ValueError, match="frozen"):
        ServiceConfig().schedule = 1.0

"""`spectune tune`, `remeasure` and `daemon`: what they call, and what they make of the answer.

The measuring itself is replaced; stand-ins keep the real signatures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

import autotune.service.serve
import autotune.tuning.remeasure
import autotune.tuning.tune
from autotune.cli import exits
from autotune.errors import TrafficError
from autotune.progress import Progress, Stage
from autotune.settings import TuneSettings
from autotune.tuning.remeasure import Comparison
from policies.types import PairedEstimate, SpeculativeConfig
from store.records import Publication
from store.repository import Store
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run

Replace = Callable[[Callable[..., object]], Any]


@pytest.fixture
def replace_tune(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Puts a function in the place of the search."""

    def replace(stand_in: Callable[..., object]) -> Any:
        spec = create_autospec(autotune.tuning.tune.tune, side_effect=stand_in)
        monkeypatch.setattr(autotune.tuning.tune, "tune", spec)
        return spec

    return replace


def publish_sample(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication:
    """A search of one stage that publishes the sample."""
    progress.plan([Stage("Pretend", 10.0)])
    progress.begin("Pretend")
    progress.update(0.5, "half")
    progress.note("drafter x skipped: made up")
    samples.fill_open(store)
    return store.newest(1)[0]


def nothing(*_: object) -> None:
    """A search without a valid trial."""


def test_tune_shows_what_it_published(run: Run, replace_tune: Replace, store_path: Path) -> None:
    """After the search the tables of `show` and `acceptance` follow, progress goes to stderr."""
    spec = replace_tune(publish_sample)
    result = run("tune")
    assert result.exit_code == 0
    shown = run("show").stdout
    choices = shown[shown.index("Choice per") : shown.index("Between two")]
    assert choices in result.stdout
    assert run("acceptance").stdout in result.stdout
    assert result.stderr.splitlines()[0].endswith("Pretend")
    assert "drafter x skipped: made up" in result.stderr
    settings, _, studies, _ = spec.call_args.args
    assert settings == TuneSettings()
    assert studies == store_path.parent / "studies.db"


def test_tune_options(
    run: Run, replace_tune: Replace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option reaches its setting, and paths do not depend on the folder it ran in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    spec = replace_tune(nothing)
    run(
        *("tune", "--traffic", "t.jsonl", "--target", "model"),
        *("--drafter", "a=drafts/a", "--drafter", "b=/b", "--layer-skip", "4", "--layer-skip", "2"),
        *("--batch", "8", "--batch", "2", "--max-k", "5", "--requests", "9", "--trials", "3"),
        *("--seed", "0", "--dtype", "float32", "--device", "cpu"),
    )
    assert spec.call_args.args[0] == TuneSettings(
        traffic=tmp_path / "t.jsonl",
        target=str(tmp_path / "model"),
        drafters={"a": tmp_path / "drafts/a", "b": Path("/b")},
        layer_skip=(4, 2),
        batch_sizes=(2, 8),
        max_num_speculative_tokens=5,
        num_requests=9,
        trials=3,
        seed=0,
        dtype="float32",
        device="cpu",
    )


def test_repository_is_no_folder(run: Run, replace_tune: Replace) -> None:
    """A hub name stays as it is."""
    spec = replace_tune(nothing)
    run("tune", "--target", "owner/name")
    assert spec.call_args.args[0].target == "owner/name"


def test_defaults_in_the_help_are_the_settings(run: Run) -> None:
    """The help tells the defaults that the settings have."""
    text = " ".join(run("tune", "--help").stdout.split())
    defaults = TuneSettings()
    told = {
        "--target": defaults.target,
        "--batch": ", ".join(map(str, defaults.batch_sizes)),
        "--max-k": defaults.max_num_speculative_tokens,
        "--requests": defaults.num_requests,
        "--trials": defaults.trials,
        "--seed": defaults.seed,
        "--dtype": defaults.dtype,
        "--device": defaults.device,
    }
    for option, default in told.items():
        found = re.search(rf"{option} .*?\[default: ([^\]]*)\]", text)
        assert found is not None
        assert found[1] == str(default), option


def test_no_valid_trial(run: Run, replace_tune: Replace) -> None:
    """A search that may not publish ends with a code of its own."""
    replace_tune(nothing)
    result = run("tune")
    assert result.exit_code == exits.NOTHING_PUBLISHED
    assert "no trial was valid, so nothing was published" in result.stderr


def test_tune_is_interrupted(run: Run, replace_tune: Replace) -> None:
    """Ctrl-C ends in one line and code 130."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    replace_tune(interrupt)
    result = run("tune")
    assert (result.exit_code, result.stderr) == (exits.INTERRUPTED, "spectune: interrupted\n")


def test_tune_meets_bad_traffic(run: Run, replace_tune: Replace) -> None:
    """What the search refuses is told in one line."""

    def refuse(*_: object) -> None:
        raise TrafficError("t.jsonl: no request in it")

    replace_tune(refuse)
    result = run("tune", "--traffic", "t.jsonl")
    assert (result.exit_code, result.stderr) == (2, "spectune: t.jsonl: no request in it\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "small"], "small: must be NAME=DIR"),
        (["--drafter", "=x"], "=x: must be NAME=DIR"),
        (["--drafter", "a=x", "--drafter", "a=y"], "a=y: named twice"),
        (["--drafter", "off=x"], "the name 'off' is taken by a built-in drafter"),
        (["--batch", "0"], "needs at least one size, each from 1 to 1024"),
        (["--max-k", "99"], "max_num_speculative_tokens = 99"),
        (["--trials", "0"], "trials = 0"),
    ],
)
def test_tune_refuses(
    run: Run, replace_tune: Replace, store_path: Path, arguments: list[str], message: str
) -> None:
    """Bad options are refused before anything is opened or measured."""
    spec = replace_tune(nothing)
    result = run("tune", *arguments)
    assert result.exit_code == exits.BAD_INPUT
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not spec.called
    assert not store_path.exists()


def comparison(difference: tuple[float, float]) -> Comparison:
    """A comparison with made-up figures."""
    first, second = (
        PairedEstimate(
            log_gain=log_gain,
            std_error=0.01,
            num_blocks=24,
            baseline_tokens_per_s=100.0,
            candidate_tokens_per_s=rate,
        )
        for log_gain, rate in ((0.0, 100.0), (0.1, 110.5))
    )
    return Comparison(
        batch_size=4,
        config=SpeculativeConfig(drafter="ngram", num_speculative_tokens=3),
        status="validated",
        first=first,
        second=second,
        difference_low=difference[0],
        difference_high=difference[1],
    )


@pytest.fixture
def replace_remeasure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A second measurement with one cell that agrees and one that does not."""
    found = (comparison((-0.01, 0.2)), comparison((0.05, 0.2)))
    spec = create_autospec(autotune.tuning.remeasure.remeasure, return_value=found)
    monkeypatch.setattr(autotune.tuning.remeasure, "remeasure", spec)
    return spec


def test_remeasure(run: Run, fill: Fill, replace_remeasure: Any) -> None:
    """Both columns side by side, and which differences do not contain zero."""
    fill()
    result = run("remeasure", "--seed", "5")
    assert result.exit_code == 0
    assert replace_remeasure.call_args.kwargs == {"seed": 5}
    agreeing, other = [line for line in result.stdout.splitlines() if "ngram K=3" in line]
    expected = "4 ngram K=3 validated 100.0 100.0 1.00x 100.0 110.5 1.11x"
    assert " ".join(agreeing.split()) == f"{expected} -1.0 % to +22.1 % yes"
    assert other.split()[-1] == "NO"
    assert "1 of 2 intervals of the difference contain zero." in result.stdout


def test_remeasure_json(run: Run, fill: Fill, replace_remeasure: Any) -> None:
    """The same as data."""
    fill()
    first, second = json.loads(run("remeasure", "--json").stdout)
    assert first["difference"]["contains_zero"] is True
    assert second["difference"]["contains_zero"] is False
    assert first["second"]["candidate_tokens_per_s"] == 110.5


def test_remeasure_needs_a_publication(run: Run, replace_remeasure: Any) -> None:
    """Nothing to measure again is told before the model is loaded."""
    result = run("remeasure", "--json")
    assert (result.exit_code, result.stdout) == (exits.NOTHING_PUBLISHED, "null\n")
    assert not replace_remeasure.called


@pytest.mark.parametrize("code", [0, 2])
def test_daemon(run: Run, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The service gets the file and decides the exit code."""
    spec = create_autospec(autotune.service.serve.run, return_value=code)
    monkeypatch.setattr(autotune.service.serve, "run", spec)
    assert run("daemon", "--config", "/etc/a.toml").exit_code == code
    assert spec.call_args.args == (Path("/etc/a.toml"),)


def test_daemon_takes_no_store_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that would not reach the service is refused instead of ignored."""
    spec = create_autospec(autotune.service.serve.run)
    monkeypatch.setattr(autotune.service.serve, "run", spec)
    result = run("--store", "a.db", "daemon")
    assert result.exit_code == exits.BAD_INPUT
    assert "--store does not reach the service" in result.stderr
    assert not spec.called

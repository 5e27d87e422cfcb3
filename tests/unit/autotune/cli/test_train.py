"""`spectune train`: what it passes on, and what it prints of the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import click
import pytest

import autotune.training.run
from autotune.cli import exits
from autotune.cli.train import command
from autotune.progress import Progress
from autotune.training.settings import TrainSettings
from engine.errors import TrainingError
from engine.training.card import TrainingFacts
from tests.unit.autotune.cli.conftest import Run
from tests.unit.engine.training.test_card import FACTS


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the training itself."""

    def stand_in(
        settings: TrainSettings, progress: Progress, *, keep_work: bool = False
    ) -> TrainingFacts:
        settings.work.mkdir()
        return FACTS

    spec = create_autospec(autotune.training.run.train_drafter, side_effect=stand_in)
    monkeypatch.setattr(autotune.training.run, "train_drafter", spec)
    return spec


def test_options_become_settings(run: Run, training: Any, tmp_path: Path) -> None:
    """What is not given keeps the settings' default."""
    result = run("train", "--method", "eagle3", "--out", str(tmp_path / "d"), "--budget", "2m")
    assert result.exit_code == 0
    settings = training.call_args.args[0]
    assert settings == TrainSettings(method="eagle3", out=tmp_path / "d", budget=120.0)
    assert training.call_args.kwargs == {"keep_work": False}
    assert f"Written to {tmp_path / 'd'}" in result.stdout
    assert "chat" in result.stdout
    assert "1.25" in result.stdout


def test_json(run: Run, training: Any, tmp_path: Path) -> None:
    """The facts of the drafter, and nothing else."""
    arguments = ["--method", "eagle3", "--out", str(tmp_path / "d"), "--keep-work", "--json"]
    result = run("train", *arguments)
    assert json.loads(result.stdout) == json.loads(json.dumps(FACTS.to_json()))
    assert training.call_args.kwargs == {"keep_work": True}


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), exits.INTERRUPTED, True),
        (SystemExit(exits.TERMINATED), exits.TERMINATED, True),
        (TrainingError("no luck"), exits.BAD_INPUT, False),
    ],
)
def test_endings(
    run: Run, training: Any, tmp_path: Path, error: BaseException, code: int, told: bool
) -> None:
    """A run that was stopped says where it goes on; one that failed says why."""
    (tmp_path / "d.work").mkdir()
    training.side_effect = error
    result = run("train", "--method", "eagle3", "--out", str(tmp_path / "d"))
    assert result.exit_code == code
    assert ("repeat the command to go on" in result.stderr) is told


def test_help_tells_the_defaults() -> None:
    """The words of the help are those of the settings."""
    fields = TrainSettings.model_fields
    told = {
        option.name: option.help.split("[default: ")[1].rstrip("]")
        for option in command.params
        if isinstance(option, click.Option) and option.help and "[default: " in option.help
    }
    assert told.pop("budget") == f"{fields['budget'].default / 60:g}m"
    assert told.pop("target") == "the embedded one"
    assert told.pop("heldout") == "a tenth of the workload's prompts"
    assert fields["heldout_share"].default == 0.1
    assert {name: float(text) for name, text in told.items()} == {
        name: fields[name].default for name in told
    }
    assert len(told) == 5

"""`spectune replay`: options, tables, exit codes and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

import autotune.replay_logs.run
from autotune.cli import exits
from autotune.cli.replay import command
from autotune.progress import Progress
from autotune.replay_logs.settings import ReplaySettings
from autotune.report.acceptance import AcceptanceRow
from autotune.report.replayed import ReplayedRow, ReplayReport
from engine.errors import CheckpointError
from policies.types import SpeculativeConfig
from tests.unit.autotune.cli.conftest import Run


def figures(rule: str, k: int, task: str | None) -> ReplayedRow:
    """Made-up counts."""
    config = SpeculativeConfig(drafter="mine", num_speculative_tokens=k)
    return ReplayedRow(
        rule=rule,
        counts=AcceptanceRow(
            config=config,
            task=task,
            temperature=None,
            num_requests=4,
            num_output_tokens=200,
            num_rounds=100.0 if rule == "ratio" else 80.0,
            num_drafts=90.0,
            num_draft_tokens=90.0 * k,
            num_accepted_tokens_per_pos=(60.0, 40.0, 20.0)[:k],
        ),
        std_error=0.125,
    )


REPORT = ReplayReport(
    source="file:log.jsonl",
    drafter="mine",
    method="draft_model",
    draft_temperature=None,
    num_answers=4,
    skipped={"not JSON": 1},
    axes=("task", "position"),
    sizes=tuple(figures(rule, k, None) for rule in ("ratio", "block") for k in (1, 2)),
    groups=tuple(figures(rule, k, "code") for rule in ("ratio", "block") for k in (1, 2)),
)


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the replay itself."""

    def stand_in(
        settings: ReplaySettings, axes: tuple[str, ...], progress: Progress
    ) -> ReplayReport:
        progress.note("lines skipped: 1 not JSON (the first is line 3)")
        return REPORT

    spec = create_autospec(autotune.replay_logs.run.replay_logs, side_effect=stand_in)
    monkeypatch.setattr(autotune.replay_logs.run, "replay_logs", spec)
    return spec


def test_options_become_settings(run: Run, replaying: Any, tmp_path: Path) -> None:
    """Every option reaches its setting; what is not given keeps the settings' default."""
    log = tmp_path / "a.jsonl"
    result = run("replay", "--logs", str(log), "--drafter", "ngram")
    assert result.exit_code == 0
    assert replaying.call_args.args[0] == ReplaySettings(logs=log, drafter="ngram")
    assert replaying.call_args.args[1] == ("task", "temperature", "position")
    run(
        *("replay", "--logs", str(log), "--drafter", "x=y", "--target", "owner/name"),
        *("--logprobs", "raw", "--max-k", "3", "--draft-temperature", "0.5", "--limit", "9"),
        *("--device", "cpu", "--by", "position"),
    )
    assert replaying.call_args.args[:2] == (
        ReplaySettings(
            logs=log,
            drafter="x=y",
            target="owner/name",
            log_probs="raw",
            max_num_speculative_tokens=3,
            draft_temperature=0.5,
            max_answers=9,
            device="cpu",
        ),
        ("position",),
    )


def test_tables(run: Run, replaying: Any) -> None:
    """Tokens per round by both rules with intervals, then acceptance at the largest K."""
    result = run("replay", "--logs", "a", "--drafter", "mine")
    assert "Tokens per round (mine, 4 answers of file:log.jsonl)" in result.stdout
    assert "2.00 (1.76 to 2.24)" in result.stdout
    assert "2.50 (2.26 to 2.74)" in result.stdout
    assert "Acceptance (mine K=2, ratio rule, file:log.jsonl)" in result.stdout
    assert "pos 2" in result.stdout
    assert "two exact rules" in result.stdout
    assert "lines skipped" in result.stderr
    block = run("replay", "--logs", "a", "--drafter", "mine", "--rule", "block")
    assert "Acceptance (mine K=2, block rule, file:log.jsonl)" in block.stdout


def test_json(run: Run, replaying: Any) -> None:
    """One document on stdout, notes on stderr."""
    result = run("replay", "--logs", "a", "--drafter", "mine", "--json")
    assert json.loads(result.stdout) == json.loads(json.dumps(REPORT.to_json()))
    assert "lines skipped" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--drafter", "ngram"),
        ("--logs", "a"),
        ("--logs", "a", "--drafter", "ngram", "--logprobs", "cooked"),
        ("--logs", "a", "--drafter", "ngram", "--max-k", "0"),
        ("--logs", "a", "--drafter", "ngram", "--limit", "0"),
        ("--logs", "a", "--drafter", "ngram", "--draft-temperature", "-1"),
        ("--logs", "a", "--drafter", "ngram", "--by", "colour"),
        ("--logs", "/nowhere/at/all", "--drafter", "ngram"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    """Exit code 2, and nothing on stdout."""
    result = run("replay", *arguments)
    assert result.exit_code == exits.BAD_INPUT
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("spectune")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), exits.INTERRUPTED), (CheckpointError("no"), exits.BAD_INPUT)],
)
def test_endings(run: Run, replaying: Any, error: BaseException, code: int) -> None:
    """Interruptions and engine errors have their codes."""
    replaying.side_effect = error
    assert run("replay", "--logs", "a", "--drafter", "ngram").exit_code == code


def test_defaults_are_those_of_the_settings() -> None:
    """The command and the settings agree."""
    defaults = {p.name: p.default for p in command.params if p.name is not None}
    settings = ReplaySettings(logs=Path(), drafter="ngram")
    for name in ("max_num_speculative_tokens", "max_answers", "device"):
        assert defaults[name] == getattr(settings, name)

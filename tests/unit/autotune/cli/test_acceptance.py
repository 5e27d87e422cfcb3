"""`spectune acceptance`: which figures are told, and how they are added up."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run


def rows(run: Run, *arguments: str) -> list[dict[str, Any]]:
    """The rows of the JSON report."""
    found: list[dict[str, Any]] = json.loads(run("acceptance", *arguments, "--json").stdout)["rows"]
    return found


def test_table(run: Run, fill: Fill) -> None:
    """The default view: the published drafter by task and position, each column defined."""
    fill()
    result = run("acceptance")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert "Acceptance (ngram K=3, workload: default)" in result.stdout
    assert ["chat", "8", "1200", "100.0", "%"] == next(line for line in lines if "chat" in line)[:5]
    assert "pos 1" in result.stdout
    assert "pos 3" in result.stdout
    assert "pos 4" not in result.stdout
    for column in ("accepted =", "position i =", "tokens per round ="):
        assert f"\n{column}" in result.stdout
    assert "the bonus or recovered token included" in result.stdout
    assert "not on your traffic" in result.stdout


def test_sums_before_ratios(run: Run, fill: Fill) -> None:
    """1200 tokens in 400 rounds are 3 a round, whatever the mean of the parts' ratios (4)."""
    fill()
    chat = rows(run, "--by", "task")[0]
    assert chat["num_output_tokens"] == 1200
    assert chat["num_rounds"] == 400
    assert chat["tokens_per_round"] == 3.0
    assert chat["num_accepted_tokens_per_pos"] == [200, 100, 50]
    assert chat["acceptance_per_pos"] == [0.5, 0.25, 0.125]
    assert chat["draft_acceptance_rate"] == 350 / 800


def test_axes(run: Run, fill: Fill) -> None:
    """Each axis tells apart what it names and adds up the rest."""
    fill()
    found = rows(run, "--by", "temperature")
    assert [(row["task"], row["temperature"]) for row in found] == [(None, 0.0), (None, 0.7)]
    found = rows(run, "--by", "task,temperature")
    assert len(found) == 3
    text = run("acceptance", "--by", "task").stdout
    assert "pos 1" not in text
    assert "position i" not in text


def test_drafter_axis_keeps_arms_apart(run: Run, fill: Fill) -> None:
    """Rows of different drafters or draft temperatures are never added up."""
    fill()
    found = rows(run, "--by", "drafter", "--k", "2")
    assert [(row["drafter"], row["draft_temperature"]) for row in found] == [("layer-skip-8", 0.7)]
    assert "layer-skip-8 K=2 T=0.7" in run("acceptance", "--by", "drafter", "--k", "2").stdout


def test_filters(run: Run, fill: Fill) -> None:
    """A drafter and a K can be asked for by name."""
    fill()
    found = rows(run, "--drafter", "layer-skip-8", "--k", "2")
    assert {row["drafter"] for row in found} == {"layer-skip-8"}
    assert {row["num_speculative_tokens"] for row in found} == {2}


def test_off_tells_about_the_best_drafter(run: Run, fill: Fill) -> None:
    """With off published, the drafter with the best gains in the search is told about."""
    fill(samples.OFF_ENVELOPE)
    assert {(row["drafter"], row["num_speculative_tokens"]) for row in rows(run)} == {("ngram", 3)}


def test_run_by_id(run: Run, fill: Fill) -> None:
    """A run can be named, in any spelling of its id."""
    fill()
    assert rows(run, "--run", samples.RUN_ID.upper()) == rows(run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "task,colour"], "by = task,colour: must name one or more of task, temperature"),
        (["--by", ","], "must name one or more of"),
        (["--drafter", "eagle"], "drafter = eagle: the run has layer-skip-8, ngram"),
        (["--k", "9"], "k = 9: the run has 2, 3"),
        (["--run", str(uuid.UUID(int=0))], "no run 00000000-0000-0000-0000-000000000000"),
        (["--run", "latest"], "run_id = 'latest': must be a UUID"),
    ],
)
def test_bad_input(run: Run, fill: Fill, arguments: list[str], message: str) -> None:
    """What the run does not have is refused in one line that says what it has."""
    fill()
    result = run("acceptance", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""

"""The notes that Optuna keeps: what they hold, and what may happen to their file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import ConfigError
from autotune.tuning.arms import SearchSpace
from autotune.tuning.belief import Cell
from autotune.tuning.study import ArmStudy, ChosenSampler, NoStudy
from policies.types import OFF_DRAFTER
from tests.support.scripted_search import config

TEMPERATURES: dict[str, list[float | None]] = {"ngram": [None], "draft": [None, 0.0, 0.7]}
SPACE = SearchSpace(TEMPERATURES, 4)
SIZES = (1, 4)
CELLS: list[Cell] = [
    (1, config("ngram", 3)),
    (4, config("draft", 2, 0.7)),
    (1, config("draft", 1)),
    (4, config("draft", 2, 0.7)),
    (4, config("draft", 4, 0.0)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that does not exist, in a folder that does not either."""
    return tmp_path / "state" / "studies.db"


def load(path: Path, name: str) -> optuna.Study:
    """A study as it lies in the file."""
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def note(study: ArmStudy, cells: Sequence[Cell] = CELLS) -> list[int]:
    """Ask for every cell and tell a gain; the numbers of the trials."""
    numbers = []
    for order, cell in enumerate(cells):
        numbers.append(study.ask(cell))
        study.tell(cell, numbers[-1], 0.1 * order)
    return numbers


# ---------------------------------------------------------------- what is noted


def test_every_batch_size_has_a_study(path: Path) -> None:
    """Named after the run, maximised."""
    ArmStudy(path, "run", SIZES, SPACE)

    names = optuna.get_all_study_names(f"sqlite:///{path}")
    assert sorted(names) == ["run/batch-1", "run/batch-4"]
    for name in names:
        assert load(path, name).direction == optuna.study.StudyDirection.MAXIMIZE


def test_trials_are_the_arms_that_were_chosen(path: Path) -> None:
    """In order, with their numbers and results; a repeated arm is another trial."""
    study = ArmStudy(path, "run", SIZES, SPACE)

    numbers = note(study)

    assert numbers == [0, 0, 1, 1, 2]
    for size in SIZES:
        trials = load(path, f"run/batch-{size}").trials
        mine = [(i, cell) for i, cell in enumerate(CELLS) if cell[0] == size]
        assert [(size, SPACE.config(trial.params)) for trial in trials] == [c for _, c in mine]
        assert [trial.value for trial in trials] == pytest.approx([0.1 * i for i, _ in mine])
        assert {trial.state for trial in trials} == {TrialState.COMPLETE}
        assert all(trial.distributions == SPACE.distributions for trial in trials)


def test_failed_trials_are_told_apart(path: Path) -> None:
    """D7: without a result a trial has failed; the next one is noted as usual."""
    study = ArmStudy(path, "run", SIZES, SPACE)

    failed = study.ask(CELLS[0])
    study.tell(CELLS[0], failed, None)
    note(study, [CELLS[2]])

    trials = load(path, "run/batch-1").trials
    assert [trial.state for trial in trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert SPACE.config(trials[0].params) == CELLS[0][1]
    assert load(path, "run/batch-1").best_trial.number == trials[1].number


def test_trials_may_overlap(path: Path) -> None:
    """Numbers are told apart by batch size, in whatever order results come."""
    study = ArmStudy(path, "run", SIZES, SPACE)
    cells = [CELLS[0], CELLS[1], CELLS[2]]
    numbers = [study.ask(cell) for cell in cells]

    for cell, number, gain in reversed(list(zip(cells, numbers, (0.1, 0.2, 0.3), strict=True))):
        study.tell(cell, number, gain)

    assert [trial.value for trial in load(path, "run/batch-1").trials] == [0.1, 0.3]
    assert [trial.value for trial in load(path, "run/batch-4").trials] == [0.2]


def test_nobody_else_is_asked(path: Path) -> None:
    """The sampler hands over what it was given, whatever was measured before."""
    study = ArmStudy(path, "run", (1,), SPACE)
    cells: list[Cell] = [(1, config("ngram", k)) for k in (4, 1, 3, 1)] * 3

    note(study, cells)

    trials = load(path, "run/batch-1").trials
    assert [SPACE.config(trial.params) for trial in trials] == [arm for _, arm in cells]


def test_the_sampler_serves_any_study() -> None:
    """It is an ordinary sampler of Optuna's: ask gives the chosen parameters."""
    sampler = ChosenSampler()
    sampler.chosen = SPACE.params(config("draft", 3, 0.7))

    trial = optuna.create_study(sampler=sampler).ask(SPACE.distributions)

    assert trial.params == sampler.chosen


def test_notes_can_be_left_out() -> None:
    """For searches without a file."""
    study = NoStudy()
    for cell in CELLS:
        study.tell(cell, study.ask(cell), None)


# ---------------------------------------------------------------- the file


def test_choices_may_change_between_runs(path: Path) -> None:
    """D5: another list of drafters in the same file is another study."""
    note(ArmStudy(path, "first", SIZES, SPACE))
    changed = SearchSpace({"ngram": [None], "layer-skip-3": [None, 1.3]}, 6)

    note(ArmStudy(path, "second", (1,), changed), [(1, config("layer-skip-3", 6, 1.3))])

    kept = load(path, "first/batch-1").trials
    assert [SPACE.config(trial.params) for trial in kept] == [CELLS[0][1], CELLS[2][1]]
    assert "layer-skip-3" in load(path, "second/batch-1").trials[0].params.values()
    assert OFF_DRAFTER in kept[0].distributions["drafter"].choices  # type: ignore[attr-defined]


def test_a_trial_left_running_does_not_matter(path: Path) -> None:
    """D3: a search that was killed in mid-trial leaves the next one alone."""
    ArmStudy(path, "killed", SIZES, SPACE).ask(CELLS[0])

    assert note(ArmStudy(path, "next", SIZES, SPACE)) == [0, 0, 1, 1, 2]

    (left,) = load(path, "killed/batch-1").trials
    assert left.state == TrialState.RUNNING


def test_one_run_has_one_study(path: Path) -> None:
    """The same run a second time is an error, not a continuation."""
    ArmStudy(path, "run", SIZES, SPACE)

    with pytest.raises(ConfigError, match="cannot hold Optuna's studies"):
        ArmStudy(path, "run", SIZES, SPACE)


def test_nothing_is_printed(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Optuna's own lines would tear a progress bar."""
    note(ArmStudy(path, "run", SIZES, SPACE))

    assert capfd.readouterr() == ("", "")


def no_database(path: Path) -> None:
    """A file of another kind."""
    path.write_bytes(b"not a database at all" * 100)


def a_folder(path: Path) -> None:
    """No file."""
    path.mkdir()


def older_tables(path: Path) -> None:
    """Tables of an Optuna that is long gone."""
    optuna.create_study(storage=f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("update version_info set schema_version = 1")
        connection.execute("update alembic_version set version_num = 'v0.9.0.a'")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "remedy"),
    [
        (no_database, "remove the file"),
        (a_folder, "remove the file"),
        (older_tables, "optuna storage upgrade --storage sqlite:///"),
    ],
)
def test_an_unusable_file_is_one_line(
    tmp_path: Path, spoil: Callable[[Path], None], remedy: str
) -> None:
    """D13: what is wrong with the study file, and the command that helps; nothing is deleted."""
    path = tmp_path / "studies.db"
    spoil(path)

    with pytest.raises(ConfigError) as caught:
        ArmStudy(path, "run", (4,), SPACE)

    assert str(path) in str(caught.value)
    assert remedy in str(caught.value)
    assert path.exists()


_CHILD = """
import sys
from pathlib import Path
import optuna
from autotune.tuning.study_file import create_study
print("ready", flush=True)
sys.stdin.readline()
study = create_study(Path(sys.argv[1]), sys.argv[2], optuna.samplers.RandomSampler(seed=1))
study.add_trial(optuna.trial.create_trial(value=1.0))
print(len(study.trials))
"""


def test_three_processes_may_come_at_once(tmp_path: Path) -> None:
    """D1: on a fresh file all come up, none meets a locked or half-made database."""
    path = tmp_path / "studies.db"
    children: Sequence[subprocess.Popen[str]] = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path), f"study {i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for i in range(3)
    ]
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()

    ends = [child.communicate() for child in children]

    assert ends == [("1\n", "")] * 3
    names = optuna.get_all_study_names(f"sqlite:///{path}")
    assert sorted(names) == ["study 0", "study 1", "study 2"]

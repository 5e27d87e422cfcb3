"""The search loop: who proposes, what is measured, and what failures do to it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import cast

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import ConfigError
from autotune.tuning.arms import SearchSpace
from autotune.tuning.prior import Prior
from autotune.tuning.study import Proposal, search
from policies.types import OFF_DRAFTER, PairedEstimate, SpeculativeConfig
from tests.unit.policies.builders import estimate

TEMPERATURES: dict[str, list[float | None]] = {
    "ngram": [None],
    "layer-skip-1": [None],
    "layer-skip-2": [None, 0.7],
    "draft": [None],
}
K_MAX = 4
BATCH_SIZE = 4


def arms_of(temperatures: dict[str, list[float | None]], k_max: int) -> list[SpeculativeConfig]:
    """Every arm that speculates."""
    return [
        SpeculativeConfig(drafter=name, num_speculative_tokens=k, draft_temperature=temperature)
        for name, values in temperatures.items()
        for temperature in values
        for k in range(1, k_max + 1)
    ]


def true_gain(config: SpeculativeConfig) -> float:
    """A landscape whose best arm is not the prior's: layer-skip-2 at K = 3."""
    if not config.speculates:
        return -0.02
    height = {"ngram": 0.05, "layer-skip-1": 0.2, "layer-skip-2": 0.5, "layer-skip-3": 0.3}
    away = abs(config.num_speculative_tokens - 3)
    return (
        height.get(config.drafter, -0.1)
        - 0.08 * away
        - 0.03 * (config.draft_temperature is not None)
    )


class FakePrior:
    """Predicts about what is true, or what it is told."""

    def __init__(self, gain: Callable[[SpeculativeConfig], float]) -> None:
        self._gain = gain

    def off_tokens_per_s(self, batch_size: int) -> float:
        """The baseline."""
        assert batch_size == BATCH_SIZE
        return 100.0

    def tokens_per_s(self, config: SpeculativeConfig, batch_size: int) -> float:
        """The prediction."""
        assert batch_size == BATCH_SIZE
        return 100.0 * (1 + self._gain(config))


class Search:
    """One search over a folder's study file, with everything it asked for."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self.asked: list[Proposal] = []

    def run(
        self,
        measure: Callable[[SpeculativeConfig], PairedEstimate | None],
        *,
        name: str = "run/batch-4",
        trials: int = 12,
        seed: int = 0,
        temperatures: dict[str, list[float | None]] | None = None,
        k_max: int = K_MAX,
        gain: Callable[[SpeculativeConfig], float] = true_gain,
    ) -> list[SpeculativeConfig]:
        """Search; the arms that were measured, in order."""
        values = TEMPERATURES if temperatures is None else temperatures
        before = len(self.asked)

        def asked(proposal: Proposal) -> PairedEstimate | None:
            self.asked.append(proposal)
            return measure(proposal.config)

        search(
            storage=self.storage,
            name=name,
            batch_size=BATCH_SIZE,
            arms=arms_of(values, k_max),
            space=SearchSpace(values, k_max),
            prior=cast(Prior, FakePrior(gain)),
            trials=trials,
            seed=seed,
            measure=asked,
        )
        return [proposal.config for proposal in self.asked[before:]]

    def study(self, name: str = "run/batch-4") -> optuna.Study:
        """The study as it lies in the file."""
        return optuna.load_study(study_name=name, storage=f"sqlite:///{self.storage}")


@pytest.fixture
def searching(tmp_path: Path) -> Search:
    """A search over a new file in a new folder."""
    return Search(tmp_path / "state" / "studies.db")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A usual search that is over: twelve trials."""
    done = Search(tmp_path_factory.mktemp("searched") / "studies.db")
    done.run(truth, trials=12)
    return done


def truth(config: SpeculativeConfig) -> PairedEstimate:
    """A measurement without error."""
    return estimate(true_gain(config))


def nothing(config: SpeculativeConfig) -> None:
    """A measurement that failed."""


def test_the_budget_is_spent_on_measured_arms(searched: Search) -> None:
    """Exactly as many arms as asked for, off never among them."""
    assert len(searched.asked) == 12
    assert all(proposal.config.drafter != OFF_DRAFTER for proposal in searched.asked)


def test_most_measured_trials_come_from_the_sampler(searched: Search) -> None:
    """The prior's best arms of three drafters go first; the sampler has the rest."""
    assert [proposal.proposed_by for proposal in searched.asked] == ["prior"] * 3 + ["sampler"] * 9
    first = [proposal.config for proposal in searched.asked[:3]]
    best = {
        name: max(
            (arm for arm in arms_of(TEMPERATURES, K_MAX) if arm.drafter == name), key=true_gain
        )
        for name in TEMPERATURES
    }
    assert first == [best["layer-skip-2"], best["layer-skip-1"], best["ngram"]]


def test_the_sampler_learns_from_measurements(searching: Search) -> None:
    """With a prior that prefers the wrong drafter by far, the right one prevails."""
    error = {"layer-skip-1": 0.2, "layer-skip-2": -0.2}

    measured = searching.run(
        truth,
        trials=24,
        gain=lambda config: true_gain(config) + error.get(config.drafter, 0.0),
    )

    drafters = [config.drafter for config in measured]
    assert Counter(drafters[:6]).most_common(1)[0][0] == "layer-skip-1"
    assert Counter(drafters[12:]).most_common(1)[0][0] == "layer-skip-2"
    assert true_gain(measured[-1]) > 0.3


def test_predictions_enter_as_finished_trials(searched: Search) -> None:
    """Off at 0 and every arm at its predicted log gain, told apart from measurements."""
    trials = searched.study().trials
    predicted = [trial for trial in trials if trial.user_attrs.get("source") == "model"]
    values = {
        (
            trial.params["drafter"],
            trial.params["num_speculative_tokens"],
            trial.params["draft_temperature"],
        ): trial.value
        for trial in predicted
    }
    assert len(values) == len(predicted) == 1 + len(arms_of(TEMPERATURES, K_MAX))
    assert values["off", 0, "follow"] == 0.0
    assert values["layer-skip-2", 2, "0.7"] == pytest.approx(
        log(
            1
            + true_gain(
                SpeculativeConfig(
                    drafter="layer-skip-2", num_speculative_tokens=2, draft_temperature=0.7
                )
            )
        )
    )


def test_trial_numbers_are_those_of_the_study(searched: Search) -> None:
    """Every stored block can be traced to the trial that asked for it."""
    trials = {trial.number: trial for trial in searched.study().trials}
    space = SearchSpace(TEMPERATURES, K_MAX)
    for proposal in searched.asked:
        trial = trials[proposal.trial_number]
        assert space.config(trial.params) == proposal.config
        assert trial.value == pytest.approx(log(1 + true_gain(proposal.config)))


def test_off_is_told_without_being_measured(searching: Search) -> None:
    """Where nothing pays, the sampler asks for off, and gets 0 for free."""
    searching.run(lambda config: estimate(-0.6), trials=10, gain=lambda config: -0.7)

    off = [
        trial
        for trial in searching.study().trials
        if trial.params["drafter"] == OFF_DRAFTER and "source" not in trial.user_attrs
    ]
    assert off
    assert {trial.value for trial in off} == {0.0}


def test_failures_do_not_end_the_search(searching: Search) -> None:
    """D7: a drafter that always fails is told as such, and the others are measured."""

    def fragile(config: SpeculativeConfig) -> PairedEstimate | None:
        return None if config.drafter == "layer-skip-2" else truth(config)

    measured = searching.run(fragile, trials=8)

    assert len(measured) == 8
    states = Counter(trial.state for trial in searching.study().trials)
    failed = sum(config.drafter == "layer-skip-2" for config in measured)
    assert states[TrialState.FAIL] == failed > 0
    assert states[TrialState.RUNNING] == states[TrialState.WAITING] == 0


def test_a_search_in_which_all_fails_ends(searching: Search) -> None:
    """D7: no exception, no best trial needed."""
    assert len(searching.run(nothing, trials=6)) == 6


def test_a_small_space_repeats_its_arms(searching: Search) -> None:
    """D8: two arms and twelve trials: repeats are asked for as such, and the loop ends."""
    measured = searching.run(
        lambda config: estimate(0.1), trials=12, temperatures={"ngram": [None]}, k_max=2
    )

    assert len(measured) <= 12
    assert set(measured) <= {
        SpeculativeConfig(drafter="ngram", num_speculative_tokens=k) for k in range(3)
    }
    assert len(measured) > len(set(measured))


def test_without_arms_there_is_nothing_to_search(searching: Search) -> None:
    """Every drafter was skipped: no study, no proposal."""
    assert searching.run(truth, temperatures={}) == []
    assert not searching.storage.exists()


def test_one_seed_one_search(searched: Search, tmp_path: Path) -> None:
    """D10: with one worker, equal seeds and measurements give the same proposals."""
    first = [proposal.config for proposal in searched.asked]

    assert Search(tmp_path / "again.db").run(truth, trials=12) == first
    assert Search(tmp_path / "other.db").run(truth, trials=12, seed=6) != first


def test_choices_may_change_between_runs(searching: Search) -> None:
    """D5: another list of drafters in the same file is another study."""
    searching.run(truth, name="first/batch-4", trials=4)

    changed = {"ngram": TEMPERATURES["ngram"], "layer-skip-3": [None, 1.3]}
    measured = searching.run(truth, name="second/batch-4", trials=4, temperatures=changed, k_max=6)

    assert {config.drafter for config in measured} <= set(changed)
    kept = {trial.params["drafter"] for trial in searching.study("first/batch-4").trials}
    assert kept == {OFF_DRAFTER, *TEMPERATURES}


def test_a_trial_left_running_does_not_matter(searching: Search) -> None:
    """D3: a search that was killed in mid-trial leaves the next one alone."""

    def killed(config: SpeculativeConfig) -> PairedEstimate | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searching.run(killed, name="killed/batch-4")

    assert len(searching.run(truth, name="next/batch-4", trials=3)) == 3


def test_nothing_is_printed(searching: Search, capfd: pytest.CaptureFixture[str]) -> None:
    """Optuna's own lines would tear a progress bar."""
    searching.run(truth, trials=2)

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
        Search(path).run(truth)

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

"""Studies from a ledger with every kind of trial; a whole search's are in `tests/e2e`."""

from __future__ import annotations

from math import log
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import ConfigError
from autotune.tuning.rebuild import RebuiltStudy, rebuild_studies
from policies.types import SpeculativeConfig
from store.repository import Store
from tests.contract.store_samples import NOON, make_acceptance, make_failure, make_run
from tests.unit.autotune.cli.samples import RUN_ID, blocks

A = SpeculativeConfig(drafter="ngram", num_speculative_tokens=3)
B = SpeculativeConfig(drafter="draft", num_speculative_tokens=2, draft_temperature=0.7)
C = SpeculativeConfig(drafter="late", num_speculative_tokens=1)
D = SpeculativeConfig(drafter="worn", num_speculative_tokens=1)
SETTINGS = {"batch_sizes": [1], "max_num_speculative_tokens": 4, "explore_blocks": 2}
MEASURED = [
    *blocks(1, A, [150, 150], trial=0),
    *blocks(1, C, [110], trial=1),  # and failed in its second block
    *blocks(1, A, [130, 130], trial=3),
    *blocks(1, D, [120, 120], trial=4),
    *blocks(1, D, [120, 120], stage="validate", proposed_by="validation"),
    *blocks(1, A, [10], trial=5, disturbed=True),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A search whose trial 2 failed at once; a drafter failed in the validation."""
    store = Store.open(tmp_path / "store.db")
    store.begin_run(make_run(run_id=RUN_ID, settings=SETTINGS))
    store.add_measurements(MEASURED)
    for arm in (A, B, C, D):
        named = {
            "drafter": arm.drafter,
            "num_speculative_tokens": arm.num_speculative_tokens,
            "draft_temperature": arm.draft_temperature,
        }
        store.add_acceptance([make_acceptance(RUN_ID, **named)])
        if arm != A:
            store.add_failure(make_failure(RUN_ID, batch_size=1, **named))
    store.finish_run(RUN_ID, "done", None, NOON)
    return store


def test_every_kind_of_trial(store: Store, tmp_path: Path) -> None:
    """Gains pool an arm's blocks so far; failures before, within and after the trials differ."""
    path = tmp_path / "studies.db"

    rebuilt = rebuild_studies(store, path, [store.run(RUN_ID)])

    assert rebuilt == [RebuiltStudy(f"{RUN_ID}/batch-1", 6, 2)]
    trials = optuna.load_study(
        study_name=f"{RUN_ID}/batch-1", storage=f"sqlite:///{path}"
    ).get_trials()
    assert [trial.number for trial in trials] == list(range(6))
    assert [trial.params["drafter"] for trial in trials] == [
        "ngram",
        "late",
        "draft",
        "ngram",
        "worn",
        "ngram",
    ]
    assert [trial.state for trial in trials] == [
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.FAIL,
        TrialState.COMPLETE,
        TrialState.COMPLETE,
        TrialState.COMPLETE,
    ]
    gains = [trial.value for trial in trials if trial.state == TrialState.COMPLETE]
    assert gains == pytest.approx([log(1.5), log(1.4), log(1.2), log(1.4)])
    assert trials[2].params == {
        "drafter": "draft",
        "num_speculative_tokens": 2,
        "draft_temperature": "0.7",
    }


def test_a_file_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    """One line that names it, and nothing is left behind."""
    path = tmp_path / "studies.db"
    path.mkdir()
    with pytest.raises(ConfigError, match=r"studies.db"):
        rebuild_studies(store, path, [store.run(RUN_ID)])
    assert not [one for one in tmp_path.iterdir() if ".new" in one.name]

"""The Optuna studies of a search, one for each batch size: notes that can be looked at and rebuilt.

Optuna keeps the trials and runs ask and tell; which arm comes next is decided over all batch sizes
at once (`autotune.tuning.explore`), and handed over by a sampler of our own. Decisions rest on the
ledger alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.tuning.arms import SearchSpace
from autotune.tuning.belief import Cell
from autotune.tuning.study_file import create_study


class ChosenSampler(optuna.samplers.BaseSampler):
    """Proposes what was chosen for it."""

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self.chosen: dict[str, Any] = {}

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters are independent here: there is nothing to infer."""
        return {}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """See `infer_relative_search_space`."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The chosen value."""
        return self.chosen[param_name]


class NoStudy:
    """Takes no notes."""

    def ask(self, cell: Cell) -> int:
        """Every trial is the first."""
        return 0

    def tell(self, cell: Cell, number: int, log_gain: float | None) -> None:
        """Forget it."""


class ArmStudy:
    """Notes on every measured arm."""

    def __init__(
        self, path: Path, run_id: str, batch_sizes: Sequence[int], space: SearchSpace
    ) -> None:
        """Create a study for every batch size.

        Args:
            path: SQLite file of Optuna's own.
            run_id: Part of the names: every search has studies of its own.
            batch_sizes: Of the search.
            space: Of its arms.

        Raises:
            ConfigError: The file cannot be used.
        """
        self._space = space
        self._sampler = ChosenSampler()
        self._studies: Mapping[int, optuna.Study] = {
            size: create_study(path, f"{run_id}/batch-{size}", self._sampler)
            for size in batch_sizes
        }
        self._trials: dict[tuple[int, int], Trial] = {}

    def ask(self, cell: Cell) -> int:
        """A new trial of an arm; returns its number."""
        batch_size, config = cell
        self._sampler.chosen = self._space.params(config)
        trial = self._studies[batch_size].ask(self._space.distributions)
        self._trials[batch_size, trial.number] = trial
        return trial.number

    def tell(self, cell: Cell, number: int, log_gain: float | None) -> None:
        """Its log gain over off; None if it failed."""
        trial = self._trials.pop((cell[0], number))
        study = self._studies[cell[0]]
        if log_gain is None:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, log_gain)

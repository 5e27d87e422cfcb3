"""Optuna's studies made anew from the ledger, which alone decides: they are only an index of it."""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState, create_trial

from autotune.errors import ConfigError
from autotune.report.arms import arm_of, block_of
from autotune.settings import TuneSettings
from autotune.tuning.arms import SearchSpace
from autotune.tuning.study_file import create_study, lock_of
from policies.estimate import paired_estimate
from policies.types import Block, SpeculativeConfig
from store.records import FailureRecord, MeasurementRecord, RunRecord

if TYPE_CHECKING:
    from store.repository import Store

_ALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RebuiltStudy:
    """One study.

    Attributes:
        name: Its name: the run and the batch size.
        num_trials: Trials in it, failed ones included.
        num_failed: Failed ones.
    """

    name: str
    num_trials: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class _NotedTrial:
    """A trial as the search told it: its arm and log gain, None if it failed."""

    config: SpeculativeConfig
    log_gain: float | None


def rebuild_studies(store: Store, path: Path, runs: Iterable[RunRecord]) -> list[RebuiltStudy]:
    """Write the studies of some runs into a new file that takes the old one's place.

    The old file may be missing, damaged or of another Optuna version.

    Args:
        store: Holds the ledger.
        path: The file of the studies.
        runs: Searches, oldest first.

    Raises:
        ConfigError: A search is running, which writes to the file; it cannot be written; or the
            settings of a run are not of this version.
        StoreError: A run cannot be read.
    """
    for run in store.runs(limit=_ALL):
        if run.kind == "tune" and run.status == "running":
            raise ConfigError(f"run {run.run_id} is at work on the studies: wait until it ends")
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    rebuilt = []
    try:
        for run in runs:
            rebuilt += _rebuild_run(store, fresh, run)
        if rebuilt:
            with lock_of(path).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        fresh.unlink(missing_ok=True)
        lock_of(fresh).unlink(missing_ok=True)
    return rebuilt


def _rebuild_run(store: Store, path: Path, run: RunRecord) -> list[RebuiltStudy]:
    try:
        settings = TuneSettings.parse(dict(run.settings))
    except ConfigError as error:
        raise ConfigError(
            f"run {run.run_id} has settings of another version ({error}): name the runs to rebuild "
            "with --run"
        ) from error
    temperatures: dict[str, list[float | None]] = defaultdict(list)
    for row in store.acceptance(run.run_id):
        if row.draft_temperature not in temperatures[row.drafter]:
            temperatures[row.drafter].append(row.draft_temperature)
    space = SearchSpace(temperatures, settings.max_num_speculative_tokens)
    std_errors = {arm_of(row): row.request_std_error for row in store.predictions(run.run_id)}
    failures = store.failures(run.run_id)
    rebuilt = []
    for size in settings.batch_sizes:
        trials = _trials(
            store.measurements(run.run_id, size),
            [one for one in failures if one.batch_size == size],
            std_errors,
            settings.explore_blocks,
        )
        study = create_study(path, f"{run.run_id}/batch-{size}", optuna.samplers.RandomSampler())
        for trial in trials:
            failed = trial.log_gain is None
            study.add_trial(
                create_trial(
                    params=space.params(trial.config),
                    distributions=space.distributions,
                    value=trial.log_gain,
                    state=TrialState.FAIL if failed else TrialState.COMPLETE,
                )
            )
        num_failed = sum(trial.log_gain is None for trial in trials)
        rebuilt.append(RebuiltStudy(study.study_name, len(trials), num_failed))
    return rebuilt


def _trials(
    rows: Iterable[MeasurementRecord],
    failures: Iterable[FailureRecord],
    std_errors: dict[tuple[int, SpeculativeConfig], float],
    blocks_per_trial: int,
) -> list[_NotedTrial]:
    """The trials of one batch size in their order.

    A trial's gain pools all blocks of its arm so far. A failure stores no number: it ended the
    last trial of its arm, or, where that has all its blocks, one that has none at all.
    """
    rows = list(rows)
    blocks: dict[int, list[MeasurementRecord]] = defaultdict(list)
    for row in rows:
        if row.stage == "explore" and row.trial_number is not None:
            blocks[row.trial_number].append(row)
    validated = {arm_of(row) for row in rows if row.stage == "validate"}
    found: dict[int, _NotedTrial] = {}
    pooled: dict[SpeculativeConfig, list[Block]] = defaultdict(list)
    for number, some in sorted(blocks.items()):
        arm = arm_of(some[0])
        pooled[arm[1]] += [block_of(row) for row in some if not row.disturbed]
        found[number] = _NotedTrial(arm[1], _log_gain(pooled[arm[1]], std_errors.get(arm, 0.0)))
    for failure in failures:
        arm = arm_of(failure)
        if arm in validated:
            continue
        last = max((n for n, some in blocks.items() if arm_of(some[0]) == arm), default=None)
        if last is None or len(blocks[last]) >= blocks_per_trial:
            last = next(n for n in range(len(found) + 1) if n not in found)
        found[last] = _NotedTrial(arm[1], None)
    return [trial for _, trial in sorted(found.items())]


def _log_gain(blocks: list[Block], std_error: float) -> float | None:
    return paired_estimate(blocks, std_error).log_gain if len(blocks) > 1 else None

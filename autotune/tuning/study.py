"""The Optuna study of one batch size: which arm to measure next.

The study is an index for the sampler. Decisions rest on the ledger alone, so a study can be thrown
away and rebuilt.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import optuna
from optuna.trial import TrialState, create_trial

from autotune.tuning.arms import SearchSpace
from autotune.tuning.prior import Prior
from autotune.tuning.study_file import create_study
from policies.types import OFF, PairedEstimate, SpeculativeConfig

_MAX_REASKS = 20
_MAX_TRIALS_PER_ARM = 2
_ENQUEUED = 3  # of the prior's best arms, each of another drafter; the sampler proposes the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An arm to measure.

    Attributes:
        trial_number: Number of the trial in the study.
        proposed_by: `prior` or `sampler`.
        config: The arm.
    """

    trial_number: int
    proposed_by: str
    config: SpeculativeConfig


Measure = Callable[[Proposal], PairedEstimate | None]
"""Measures an arm; None when it failed. A repeated arm gets more blocks, pooled with the old."""


def search(
    *,
    storage: Path,
    name: str,
    batch_size: int,
    arms: Sequence[SpeculativeConfig],
    space: SearchSpace,
    prior: Prior,
    trials: int,
    seed: int,
    measure: Measure,
) -> None:
    """Run the ask-and-tell loop.

    The model's predictions for all arms enter the study as finished trials, so that the sampler
    starts from what replay and the cost table know; the best of them are measured first.

    Args:
        storage: SQLite file of Optuna's own.
        name: Name of the study.
        batch_size: Requests in flight.
        arms: Every arm that speculates.
        space: Their search space.
        prior: Predicts an arm's rate.
        trials: Arms to measure.
        seed: Seed of the sampler.
        measure: Called for every trial.

    Raises:
        ConfigError: The file cannot be used.
    """
    if not arms:
        return  # every drafter was skipped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    study = create_study(storage, name, sampler)
    off_rate = prior.off_tokens_per_s(batch_size)
    predicted = {arm: log(prior.tokens_per_s(arm, batch_size) / off_rate) for arm in arms}
    study.add_trials(
        [
            create_trial(
                params=space.params(arm),
                distributions=space.distributions,
                value=value,
                user_attrs={"source": "model"},
            )
            for arm, value in [(OFF, 0.0), *predicted.items()]
        ]
    )
    for arm in _best_per_drafter(predicted)[: min(_ENQUEUED, trials)]:
        study.enqueue_trial(space.params(arm), user_attrs={"source": "prior"})
    measured = 0
    counts: Counter[SpeculativeConfig] = Counter()
    known: dict[SpeculativeConfig, float] = {}
    for _ in range(trials + _MAX_REASKS):
        if measured == trials:
            break
        trial = study.ask(space.distributions)
        config = space.config(trial.params)
        if config.is_off:
            study.tell(trial, 0.0)  # the baseline of every block: its gain is 0 by definition
            continue
        if counts[config] == _MAX_TRIALS_PER_ARM:
            study.tell(trial, known[config])  # another arm is worth more than more of the same
            continue
        source = "prior" if trial.user_attrs.get("source") == "prior" else "sampler"
        proposal = Proposal(trial_number=trial.number, proposed_by=source, config=config)
        estimate = measure(proposal)
        measured += 1
        if estimate is None:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, estimate.log_gain)
            counts[config] += 1
            known[config] = estimate.log_gain


def _best_per_drafter(predicted: dict[SpeculativeConfig, float]) -> list[SpeculativeConfig]:
    """The best predicted arm of each drafter, best first."""
    best: dict[str, SpeculativeConfig] = {}
    for arm in sorted(predicted, key=lambda arm: -predicted[arm]):
        best.setdefault(arm.drafter, arm)
    return list(best.values())

"""Predictions and the errors that they are said to have."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.arms import arm_config
from tests.simulator.families import at_zero, general, one_true_gain
from tests.simulator.prior import WORSE, PriorMode, predict
from tests.simulator.world import World


def errors(world: World, mode: PriorMode, seed: int) -> dict[str, list[float]]:
    """Log errors of all predictions by drafter."""
    predicted = predict(world, mode, np.random.default_rng(seed))
    found: dict[str, list[float]] = {name: [] for name in world.temperatures}
    for size in world.batch_sizes:
        for config in world.arms:
            rate = predicted.tokens_per_s(config, size) / predicted.off_tokens_per_s(size)
            found[config.drafter].append(math.log(rate) - world.measurable(config, size))
    return found


def test_an_exact_prior_has_no_error() -> None:
    """But for the choice of requests, which it shares with the bench."""
    world = general(1).world
    assert max(abs(e) for values in errors(world, "exact", 0).values() for e in values) < 1e-9


def test_errors_are_5_percent_and_common_to_a_drafter() -> None:
    """Null: standard deviation 0.05; 0.4 of the variance is the drafter's in all its arms.

    100 priors of 3 drafters: 300 drafter means at 4 batch sizes each; chi-square tolerances at 5
    standard errors are 20 % of a standard deviation of means.
    """
    world = at_zero(0).world
    per_drafter = [
        values for seed in range(100) for values in errors(world, "noisy", seed).values()
    ]
    assert float(np.std(np.concatenate(per_drafter))) == pytest.approx(0.05, rel=0.1)
    means = [float(np.mean(values)) for values in per_drafter]
    of_means = math.sqrt(0.05**2 * (0.4 + 0.3 / 4 + 0.3 / len(per_drafter[0])))
    assert float(np.std(means)) == pytest.approx(of_means, rel=0.2)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_an_adversarial_prior_points_at_bad_arms(seed: int) -> None:
    """At every batch size its argmax is faster than off, it says, and is 5 % below the best."""
    world = general(seed).world
    predictor = predict(world, "adversarial", np.random.default_rng(seed))
    for size in world.batch_sizes:
        decoy = predictor.argmax(size)
        assert world.log_gain(decoy, size) < world.best_arm(size)[1] - WORSE
        assert predictor.tokens_per_s(decoy, size) > predictor.off_tokens_per_s(size)


def test_no_decoy_where_all_arms_are_equal() -> None:
    """Nothing is bad enough in a flat world."""
    world = replace(at_zero(0).world, sample_shifts={})
    with pytest.raises(ValueError, match="batch size 1"):
        predict(world, "adversarial", np.random.default_rng(0))


def test_a_useless_prior_knows_the_values_but_not_whose() -> None:
    """The same gains at each batch size, without any relation to the arms'."""
    world = general(1).world
    predicted = predict(world, "useless", np.random.default_rng(0)).log_gains
    for size in world.batch_sizes:
        true = [world.measurable(config, size) for config in world.arms]
        given = [predicted[size, config] for config in world.arms]
        assert sorted(given) == pytest.approx(sorted(true))
        assert abs(float(np.corrcoef(true, given)[0, 1])) < 0.4


def test_idle_drafters_are_predicted_to_cost_nothing() -> None:
    """As the product assumes until it has measured."""
    predictor = one_true_gain(0).predictor
    assert predictor.tokens_per_s(arm_config("eagle", 0), 16) == predictor.off_tokens_per_s(16)


def test_the_search_is_told_the_error_of_the_requests() -> None:
    """Per arm, 0 where nothing is accepted."""
    scenario = general(1)
    config = scenario.world.arms[0]
    error = scenario.predictor.log_std_error(config)
    assert error == scenario.world.request_std_errors[config] > 0
    assert scenario.predictor.log_std_error(arm_config(config.drafter, 0)) == 0.0

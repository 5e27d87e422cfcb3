"""The best table of a world, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policies.types import OFF, SpeculativeConfig
from tests.simulator.arms import Arm, arm_config
from tests.simulator.world import Drift, World


def world(gains: Mapping[str, Mapping[int, tuple[float, ...]]]) -> World:
    """A world from log gains of K = 0, 1, 2 by drafter and batch size."""
    return World(
        temperatures=dict.fromkeys(gains, (None,)),
        max_num_speculative_tokens=2,
        off_tokens_per_s={1: 10.0, 16: 100.0},
        log_gains=table(gains),
    )


def table(gains: Mapping[str, Mapping[int, tuple[float, ...]]]) -> dict[Arm, float]:
    """Log gains by arm."""
    return {
        (size, arm_config(name, k)): value
        for name, by_size in gains.items()
        for size, values in by_size.items()
        for k, value in enumerate(values)
    }


GAINS = {
    "a": {1: (0.0, 0.3, 0.4), 16: (-0.005, -0.2, -0.4)},
    "b": {1: (-0.02, 0.1, 0.2), 16: (-0.02, 0.1, 0.15)},
}


def test_the_best_table_of_an_envelope() -> None:
    """K at every batch size, the idle drafter where nothing is faster than it."""
    found = world(GAINS).best_within(("a", None))
    assert found.arms == {1: arm_config("a", 2), 16: arm_config("a", 0)}
    assert found.log_gains == {1: 0.4, 16: -0.005}
    assert found.total == pytest.approx(0.1975)


def test_the_best_envelope_follows_the_weights() -> None:
    """Drafter a is better on average, b where the traffic is mostly at batch 16."""
    even = world(GAINS)
    assert even.optimum().kind == ("a", None)
    assert replace(even, weights={1: 0.1, 16: 0.9}).optimum().kind == ("b", None)


def test_an_envelope_that_harms_is_none() -> None:
    """Drafter a costs 0.5 % at batch 16: too much under a harm margin of 0.4 %."""
    assert world(GAINS).optimum(harm=0.004).kind == ("b", None)
    worse = {"a": {1: (0.0, 0.3, 0.4), 16: (-0.03, -0.2, -0.4)}}
    assert world(worse).optimum().kind is None
    assert world(worse).optimum().total == 0.0


def test_off_wins_ties() -> None:
    """A drafter that gains nothing is not loaded, and the smaller K of equals is best."""
    flat = {"a": {1: (0.0, 0.0, 0.0), 16: (0.0, 0.0, 0.0)}}
    assert world(flat).optimum().kind is None
    assert world(flat).best_arm(1) == (OFF, 0.0)
    even = {"a": {1: (0.0, 0.2, 0.2), 16: (0.0, 0.1, 0.1)}}
    assert world(even).optimum().arms[1] == arm_config("a", 1)


def test_the_best_arm_of_a_batch_size_may_be_any_drafters() -> None:
    """Envelopes do not bind it; off is among them."""
    assert world(GAINS).best_arm(1) == (arm_config("a", 2), 0.4)
    assert world(GAINS).best_arm(16) == (arm_config("b", 2), 0.15)


def test_a_drafter_that_dies_is_no_optimum() -> None:
    """However fast it was."""
    mortal = replace(world(GAINS), fails_after={"a": 5})
    assert mortal.optimum().kind == ("b", None)
    assert mortal.best_arm(1) == (arm_config("b", 2), 0.2)


def test_gains_drift_and_then_stay() -> None:
    """Half way after half the time; the optimum follows."""
    swapped = table({"a": GAINS["b"], "b": GAINS["a"]})
    moving = replace(world(GAINS), drift=Drift(log_gains=swapped, over_s=100.0))
    arm = arm_config("a", 2)
    assert [moving.log_gain(arm, 1, at_s) for at_s in (0, 50, 100, 900)] == pytest.approx(
        [0.4, 0.3, 0.2, 0.2]
    )
    assert moving.optimum(0).kind == ("a", None)
    assert moving.optimum(100).kind == ("b", None)


def test_the_choice_of_requests_is_not_the_truth() -> None:
    """It moves what can be measured, not what is true; idle drafters accept nothing."""
    arm = arm_config("a", 1)
    shifted = replace(world(GAINS), sample_shifts={arm: 0.01})
    assert shifted.log_gain(arm, 1) == 0.3
    assert shifted.measurable(arm, 1) == pytest.approx(0.31)
    assert shifted.measurable(arm_config("a", 0), 16) == -0.005


def test_draft_temperature_means_nothing_when_idle() -> None:
    """A decision may carry the envelope's draft temperature at K = 0."""
    idle = SpeculativeConfig(drafter="a", draft_temperature=0.7)
    assert world(GAINS).log_gain(idle, 16) == -0.005


def test_arms_are_all_that_draft() -> None:
    """Drafters, draft temperatures and K."""
    wide = replace(world(GAINS), temperatures={"a": (None, 0.7), "b": (None,)})
    assert len(wide.arms) == len(set(wide.arms)) == 6
    assert wide.kinds == (("a", None), ("a", 0.7), ("b", None))

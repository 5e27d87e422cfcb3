"""Regret and faults of decisions written by hand, and of whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from engine.errors import EngineError
from policies.schedule import build_schedule
from policies.types import (
    OFF,
    CellDecision,
    CellStatus,
    Decision,
    Envelope,
    Margins,
    Question,
    SpeculativeConfig,
)
from tests.simulator.arms import arm_config
from tests.simulator.bench import SimulatedBench
from tests.simulator.families import FAMILIES, at_margin, general, harmful_idle
from tests.simulator.noise import Noise
from tests.simulator.prior import SimulatedPredictor
from tests.simulator.regret import faults_of, regret_of, true_gains
from tests.simulator.run import run_search
from tests.simulator.scenario import Scenario
from tests.simulator.world import World
from tests.unit.simulator.test_world import GAINS, world

WORLD = world(GAINS)


def decision(chosen: Mapping[int, SpeculativeConfig]) -> Decision:
    """A decision with a cell per batch size."""
    cells = tuple(
        CellDecision(
            batch_size=size,
            chosen=config,
            best_candidate=None,
            status=CellStatus.VALIDATED,
            reason="Because.",
        )
        for size, config in chosen.items()
    )
    first = next(iter(chosen.values()))
    temperatures = {config.draft_temperature for config in chosen.values() if config.speculates}
    envelope = Envelope(
        drafter=first.drafter,
        max_num_speculative_tokens=max(c.num_speculative_tokens for c in chosen.values()),
        draft_temperature=temperatures.pop() if temperatures else None,
    )
    return Decision(
        envelope=envelope,
        cells=cells,
        schedule=build_schedule(cells),
        reason="Because.",
        question=Question(envelope=envelope, candidates=chosen),
    )


def best_of(world: World) -> Decision:
    """The decision of one who knows."""
    return decision(world.optimum().arms)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_optimum_has_no_regret(family: str) -> None:
    """In every family, at its beginning, within and across."""
    world = FAMILIES[family](3).world
    found = regret_of(world, best_of(world))
    assert found.within_max == 0
    assert found.across == pytest.approx(0, abs=1e-12)
    assert not faults_of(world, best_of(world), margins=Margins(hot=0, restart=0)).false_publish
    assert not faults_of(world, best_of(world)).harmful


def test_regret_within_is_against_every_k_of_the_envelope() -> None:
    """Also against K larger than the decision has room for."""
    made = decision({1: arm_config("a", 1), 16: arm_config("a", 0)})
    assert made.envelope.max_num_speculative_tokens == 1
    found = regret_of(WORLD, made)
    assert found.within == pytest.approx({1: 0.1, 16: 0.0})
    assert found.across == pytest.approx(0.05)


def test_regret_across_is_against_the_best_envelope() -> None:
    """A perfect table of the wrong drafter, and nothing at all."""
    found = regret_of(WORLD, decision({1: arm_config("b", 2), 16: arm_config("b", 2)}))
    assert found.within_max == 0.0
    assert found.across == pytest.approx(0.1975 - 0.175)
    off = regret_of(WORLD, decision({1: OFF, 16: OFF}))
    assert off.within == {1: 0.0, 16: 0.0}
    assert off.across == pytest.approx(0.1975)


def test_gains_on_a_margin_are_false() -> None:
    """Exactly 1 % does not exceed 1 %; a little more does."""
    flat = at_margin(0).world
    made = decision(dict.fromkeys(flat.batch_sizes, arm_config("eagle", 2)))
    found = faults_of(flat, made)
    assert found.false_cells == flat.batch_sizes
    assert found.false_restart
    assert found.false_publish
    assert not found.harmful
    assert not faults_of(flat, made, margins=Margins(hot=0.0099, restart=0.0099)).false_publish
    assert faults_of(flat, made, margins=Margins(hot=0.0099)).false_restart


def test_harm_is_told_apart() -> None:
    """Arms that lose and idle drafters that do; 1 % is no harm, more is."""
    found = faults_of(WORLD, decision({1: arm_config("a", 0), 16: arm_config("a", 1)}))
    assert found.harmful_cells == found.false_cells == (16,)
    assert found.harmful_idle == ()
    idle = faults_of(WORLD, decision({1: arm_config("b", 1), 16: arm_config("b", 0)}))
    assert idle.harmful_idle == (16,)
    assert idle.harmful_cells == ()
    assert idle.harmful
    lost = {**WORLD.log_gains, (16, arm_config("b", 0)): math.log(0.99)}
    exact = faults_of(
        replace(WORLD, log_gains=lost), decision({1: arm_config("b", 1), 16: arm_config("b", 0)})
    )
    assert not exact.harmful


def test_off_has_no_faults() -> None:
    """Whatever the world."""
    for family in FAMILIES.values():
        found = faults_of(family(1).world, decision(dict.fromkeys((1, 4, 16, 64), OFF)))
        assert not any((found.false_publish, found.harmful, found.dead))


def test_a_decision_must_cover_the_world() -> None:
    """A batch size left out would hide its regret."""
    with pytest.raises(ValueError, match="batch sizes"):
        true_gains(WORLD, decision({1: OFF}))


def test_a_run_counts_what_it_measured() -> None:
    """Blocks, seconds and the decision that came of them, the same each time."""
    scenario = general(1)
    arm = scenario.world.arms[0]

    def search(bench: SimulatedBench, predictor: SimulatedPredictor) -> Decision:
        for index in range(10):
            bench.measure(arm, 1, "explore", index)
        return decision(dict.fromkeys(scenario.world.batch_sizes, OFF))

    outcome = run_search(scenario, search, window_s=1.0)
    assert outcome.num_blocks == 10
    assert outcome.device_seconds == pytest.approx(10 * 4 * 1.3)
    assert not outcome.published
    assert outcome.regret.across == pytest.approx(scenario.world.optimum().total)
    assert run_search(scenario, search, window_s=1.0) == outcome


def test_a_dead_drafter_is_not_to_be_published() -> None:
    """Not even when its blocks before it died were splendid."""
    mortal = replace(harmful_idle(0).world, fails_after={"eagle": 1})
    base = harmful_idle(0)
    scenario = Scenario(family="", seed=0, world=mortal, noise=Noise(), predictor=base.predictor)

    def search(bench: SimulatedBench, predictor: SimulatedPredictor) -> Decision:
        arm = arm_config("eagle", 1)
        bench.measure(arm, 1, "explore", 0)
        with pytest.raises(EngineError):
            bench.measure(arm, 1, "explore", 1)
        return decision(dict.fromkeys(mortal.batch_sizes, arm))

    outcome = run_search(scenario, search)
    assert outcome.faults.dead
    assert outcome.published


def test_a_drifting_world_judges_by_its_end() -> None:
    """A search that takes long enough is judged by what became of the gains."""
    scenario = FAMILIES["drifting"](0)
    assert scenario.world.drift
    arm = scenario.world.arms[0]
    ends = scenario.world.drift.log_gains[1, arm]

    def search(bench: SimulatedBench, predictor: SimulatedPredictor) -> Decision:
        for index in range(1_000):
            bench.measure(arm, 1, "explore", index)
        return decision(dict.fromkeys(scenario.world.batch_sizes, arm))

    outcome = run_search(scenario, search)
    late = true_gains(scenario.world, outcome.decision, outcome.device_seconds)
    assert late[1] == pytest.approx(ends)

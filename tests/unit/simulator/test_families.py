"""Every family is what its docstring says, for many seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.simulator.arms import arm_config
from tests.simulator.builders import BATCH_SIZES, MAX_DRAFTS
from tests.simulator.families import (
    FAMILIES,
    at_margin,
    at_restart,
    at_zero,
    drifting,
    dying,
    general,
    harmful_arms,
    harmful_beside_gain,
    harmful_idle,
    lucky,
    margin_beside_gain,
    members,
    one_true_gain,
    useless,
)
from tests.simulator.prior import WORSE
from tests.simulator.scenario import Scenario
from tests.simulator.world import World

SEEDS = 40
HOT = math.log(1.01)


def drafting(world: World) -> list[tuple[int, float]]:
    """Batch size and true log gain of every arm that drafts."""
    return [
        (size, world.log_gain(config, size)) for size in world.batch_sizes for config in world.arms
    ]


def idle(world: World) -> list[float]:
    """True log gains of the idle drafters."""
    return [
        world.log_gain(arm_config(name, 0), size)
        for size in world.batch_sizes
        for name in world.temperatures
    ]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_seed_decides_everything(family: Callable[[int], Scenario]) -> None:
    """Same seed, same world, noise and prior; another seed, another prior."""
    assert family(5) == family(5)
    assert family(5).predictor != family(6).predictor


@pytest.mark.parametrize(("name", "family"), FAMILIES.items(), ids=FAMILIES)
def test_every_arm_has_a_gain_and_a_prediction(
    name: str, family: Callable[[int], Scenario]
) -> None:
    """All batch sizes, all K, idle included; nothing is missing or infinite."""
    for scenario in members(family, 5):
        world = scenario.world
        assert (scenario.family, world.batch_sizes) == (name, BATCH_SIZES)
        assert world.max_num_speculative_tokens == MAX_DRAFTS
        assert len(world.log_gains) == 4 * (len(world.arms) + len(world.temperatures))
        assert all(math.isfinite(gain) for _, gain in drafting(world))
        assert all(
            0 < scenario.predictor.tokens_per_s(config, size) < math.inf
            for size in BATCH_SIZES
            for config in world.arms
        )
        assert all(0 < error < 0.05 for error in world.request_std_errors.values())


def test_half_of_the_general_priors_mislead() -> None:
    """On even seeds the argmax is more than 5 % below the best, at every batch size."""
    misled = 0
    for scenario in members(general, 2 * SEEDS):
        world = scenario.world
        worse = [
            world.log_gain(scenario.predictor.argmax(size), size) < world.best_arm(size)[1] - WORSE
            for size in BATCH_SIZES
        ]
        assert scenario.prior_misleads == (scenario.seed % 2 == 0)
        assert all(worse) or not scenario.prior_misleads
        misled += scenario.prior_misleads
    assert misled == SEEDS


def test_general_landscapes_have_something_to_find() -> None:
    """A spread of more than 10 % at every batch size; most have several optima, most drafters
    help at batch 1, and off is often best at batch 64.
    """
    distinct: Counter[int] = Counter()
    off: Counter[int] = Counter()
    for scenario in members(general, 2 * SEEDS):
        world = scenario.world
        for size in BATCH_SIZES:
            gains = [0.0, *(world.log_gain(config, size) for config in world.arms)]
            assert world.best_arm(size)[1] - min(gains) > math.log(1.1)
            off[size] += world.best_arm(size)[0].is_off
        distinct[len({world.best_arm(size)[0] for size in BATCH_SIZES})] += 1
    assert distinct[3] + distinct[4] > SEEDS
    assert off[1] < 0.1 * 2 * SEEDS
    assert 0.25 * 2 * SEEDS < off[64] < 0.75 * 2 * SEEDS


def test_general_noise_is_of_every_kind() -> None:
    """Heavy tails, autocorrelation, throttling, luck and deaths all occur, none always."""
    scenarios = list(members(general, 2 * SEEDS))
    for share in (
        sum(s.noise.tails == "t3" for s in scenarios),
        sum(s.noise.autocorrelation > 0 for s in scenarios),
        sum(s.noise.throttling is not None for s in scenarios),
        sum(s.noise.lucky_block is not None for s in scenarios),
        sum(bool(s.world.fails_after) for s in scenarios),
    ):
        assert 0 < share < SEEDS


def test_useless_drafters_lose() -> None:
    """At least 3 % everywhere, with harmless idling; some look good to the prior."""
    tempting = 0
    for scenario in members(useless, SEEDS):
        gains = [gain for _, gain in drafting(scenario.world)]
        assert -0.7 < min(gains)
        assert max(gains) <= -0.03
        assert all(math.log(0.995) <= gain <= 0 for gain in idle(scenario.world))
        assert scenario.world.optimum().kind is None
        tempting += max(scenario.predictor.log_gains.values()) > 0
    assert tempting > SEEDS / 2


@pytest.mark.parametrize(
    ("family", "gain"), [(at_margin, HOT), (at_zero, 0.0), (at_restart, math.log(1.03))]
)
def test_exact_families_are_exact(family: Callable[[int], Scenario], gain: float) -> None:
    """Every arm that drafts has the gain, whatever the requests say; idle costs nothing."""
    for scenario in members(family, SEEDS):
        world = scenario.world
        assert {value for _, value in drafting(world)} == {gain}
        assert set(idle(world)) == {0.0}
        assert any(world.measurable(config, 1) > gain for config in world.arms) or all(
            shift <= 0 for shift in world.sample_shifts.values()
        )


def test_a_gain_beside_cells_on_the_margin() -> None:
    """Large at batch 1, exactly 1 % at the others."""
    for scenario in members(margin_beside_gain, SEEDS):
        found = set(drafting(scenario.world))
        assert found == {(1, math.log(1.3)), (4, HOT), (16, HOT), (64, HOT)}
        assert set(idle(scenario.world)) == {0.0}


def test_request_shifts_have_their_spread() -> None:
    """Standard deviation 1 % over worlds, the same for all arms of a drafter, and correlated by
    half between drafters (n = 600, 5 standard errors).
    """
    draws = [scenario.world.sample_shifts for scenario in members(at_zero, 600)]
    a, b = arm_config("eagle", 1), arm_config("draft", 3, 0.7)
    assert all(shifts[a] == shifts[arm_config("eagle", 8, 1.3)] for shifts in draws)
    products = sum(shifts[a] * shifts[b] for shifts in draws) / 600
    assert sum(shifts[a] ** 2 for shifts in draws) / 600 == pytest.approx(1e-4, rel=0.29)
    assert products == pytest.approx(0.5e-4, abs=0.23e-4)


def test_one_arm_gains_8_percent() -> None:
    """At every batch size, and every other arm at least 1.5 % less."""
    for scenario in members(one_true_gain, SEEDS):
        for size in BATCH_SIZES:
            gains = sorted(gain for at, gain in drafting(scenario.world) if at == size)
            assert gains[-1] == pytest.approx(math.log(1.08))
            assert gains[-2] <= gains[-1] - 0.0149
        best = scenario.world.optimum()
        assert best.total == pytest.approx(math.log(1.08))
        assert len(set(best.arms.values())) == 1


@pytest.mark.parametrize("family", [harmful_arms, lucky])
def test_harmful_arms_are_praised(family: Callable[[int], Scenario]) -> None:
    """All lose 1.2 % to 5 %, and the prior sees gains."""
    for scenario in members(family, SEEDS):
        gains = [gain for _, gain in drafting(scenario.world)]
        assert all(-0.05 <= gain < math.log(0.99) for gain in gains)
        assert scenario.world.optimum().kind is None
        for size in BATCH_SIZES:
            best = scenario.predictor.argmax(size)
            assert scenario.predictor.log_gains[size, best] > 0.05


def test_lucky_blocks_come_early() -> None:
    """One block among the first 40."""
    for scenario in members(lucky, SEEDS):
        assert scenario.noise.lucky_block is not None
        assert 0 <= scenario.noise.lucky_block < 40


def test_harm_beside_gain() -> None:
    """Gains at 1 and 4, losses beyond 1 % at 16 and 64; K = 0 there is right and harmless."""
    for scenario in members(harmful_beside_gain, SEEDS):
        world = scenario.world
        for size, gain in drafting(world):
            assert gain > HOT if size <= 4 else gain < math.log(0.99)
        best = world.optimum()
        assert [best.arms[size].speculates for size in BATCH_SIZES] == [True, True, False, False]
        assert min(best.log_gains.values()) >= math.log(0.995)


def test_harmful_idling_leaves_off() -> None:
    """Every drafter gains on average, and every one costs more than 1 % where it idles."""
    for scenario in members(harmful_idle, SEEDS):
        world = scenario.world
        assert all(-0.052 < gain < math.log(0.99) for gain in idle(world))
        assert all(gain < 0 for size, gain in drafting(world) if size > 4)
        assert world.optimum().kind is None
        assert world.optimum(harm=0.5).kind is not None


def test_the_best_drafter_dies() -> None:
    """It is known as mortal, and the optimum does without it."""
    for scenario in members(dying, SEEDS):
        (name,) = scenario.world.fails_after
        kind = scenario.world.optimum().kind
        assert kind is None or kind[0] != name


def test_drifting_worlds_move() -> None:
    """Gains after the drift differ from those before, all in one direction."""
    for scenario in members(drifting, SEEDS):
        drift = scenario.world.drift
        assert drift is not None
        assert 200 <= drift.over_s <= 2000
        moves = [drift.log_gains[arm] - gain for arm, gain in scenario.world.log_gains.items()]
        assert min(moves) >= 0 or max(moves) <= 0
        assert any(moves)


def test_seeds_are_independent_of_the_family() -> None:
    """Two families do not share their randomness."""
    worlds = [family(0).world.sample_shifts for family in (at_zero, useless, harmful_arms)]
    assert all(a != b for a, b in pairwise(worlds))

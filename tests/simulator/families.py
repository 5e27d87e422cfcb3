"""Families of scenarios, one for each promise about error rates and regret.

Every family is a function of a seed. The same seed gives the same scenario, always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from zlib import crc32

import numpy as np

from tests.simulator.builders import BATCH_SIZES, MAX_DRAFTS, NAMES, flat_world, physical_world
from tests.simulator.noise import Noise, Throttling
from tests.simulator.prior import WORSE, PriorMode, SimulatedPredictor, predict
from tests.simulator.scenario import Scenario
from tests.simulator.systems import TEMPERATURES, random_system
from tests.simulator.world import Drift, World

Generator = np.random.Generator


def general(seed: int) -> Scenario:
    """Systems of every kind; on even seeds the prior misleads.

    True: at every batch size the gains of the arms (off included) are spread by more than 10 %.
    On even seeds the prior's argmax is more than 5 % below the best arm at every batch size, on
    odd ones the prior has errors of 5 %. Noise has a drifting clock; by chance also heavy tails
    (30 %), autocorrelation (20 %), throttling (20 %), one lucky block (25 %); in 10 % some drafter
    dies within 40 blocks, and is then no part of the optimum.
    """
    generator = _generator("general", seed)
    misleads = seed % 2 == 0
    while True:
        world = physical_world(random_system(generator), generator)
        if generator.random() < 0.1:
            name = str(generator.choice(list(world.temperatures)))
            world = replace(world, fails_after={name: int(generator.integers(0, 40))})
        if _is_spread(world):
            break
    return Scenario(
        family="general",
        seed=seed,
        world=world,
        noise=_random_noise(generator),
        predictor=predict(world, "adversarial" if misleads else "noisy", generator),
        prior_misleads=misleads,
    )


def useless(seed: int) -> Scenario:
    """No drafter helps anywhere.

    True: every arm that drafts loses between 3 % and half of the rate, more with larger K; idle
    drafters cost up to 0.5 %. Off is the optimum. The prior's errors are 10 %, so some arms look
    good.
    """
    generator = _generator("useless", seed)
    loss = {kind: generator.uniform(0.03, 0.2) for kind in product(NAMES, TEMPERATURES)}

    def gain(drafter: str, k: int, temperature: float | None) -> Mapping[int, float]:
        value = -min(loss[drafter, temperature] * (1 + 0.25 * (k - 1)), 0.69)
        return dict.fromkeys(BATCH_SIZES, value)

    world = flat_world(generator, gain, idle=(0.0, 0.005))
    return _scenario("useless", seed, generator, world, "noisy", error_sd=0.1)


def at_margin(seed: int) -> Scenario:
    """Every arm that drafts gains exactly the hot margin, +1 %.

    True: log gain log(1.01) for every drafter, K, draft temperature and batch size; idle costs
    nothing. Publishing anything that drafts is a false publish. The choice of requests shifts
    what can be measured by a standard deviation of 1 %, half of its variance common to all
    drafters and the rest to all arms of one, and the search is told its size.
    """
    return _exact("at_margin", seed, math.log(1.01))


def at_zero(seed: int) -> Scenario:
    """Every arm that drafts gains exactly nothing; all else as in `at_margin`."""
    return _exact("at_zero", seed, 0.0)


def at_restart(seed: int) -> Scenario:
    """Every arm that drafts gains exactly the restart margin, +3 %; all else as in `at_margin`.

    No table is worth more than the margin, so loading any drafter is a false publish; that the
    cells speculate then is not.
    """
    return _exact("at_restart", seed, math.log(1.03))


def margin_beside_gain(seed: int) -> Scenario:
    """A large gain at batch 1 carries the drafter; 4, 16 and 64 lie exactly on the hot margin.

    True: log gain log(1.3) of every arm at batch 1, log(1.01) at the others; idle costs nothing.
    The restart margin protects nobody here: a cell that speculates at 4, 16 or 64 is a false
    publish that only the cells' own bounds prevent. Requests shift as in `at_margin`.
    """
    generator = _generator("margin_beside_gain", seed)
    by_size = {**dict.fromkeys(BATCH_SIZES, math.log(1.01)), 1: math.log(1.3)}
    world = flat_world(generator, lambda *_: by_size)
    return _scenario("margin_beside_gain", seed, generator, world, "noisy")


def one_true_gain(seed: int) -> Scenario:
    """One arm gains 8 % at every batch size and is alone in that.

    True: log gain log(1.08) for one drafter, K and draft temperature; it falls by 1.5 % for every
    step of K away from it and by 3 % at the drafter's other draft temperatures. All arms of the
    other drafters lose 2 %; idle costs nothing. The prior has errors of 5 %.
    """
    generator = _generator("one_true_gain", seed)
    drafter = str(generator.choice(NAMES))
    best_k = int(generator.integers(1, MAX_DRAFTS + 1))
    best_temperature = TEMPERATURES[generator.integers(len(TEMPERATURES))]

    def gain(name: str, k: int, temperature: float | None) -> Mapping[int, float]:
        value = math.log(1.08) - 0.015 * abs(k - best_k) - 0.03 * (temperature != best_temperature)
        return dict.fromkeys(BATCH_SIZES, value if name == drafter else -0.02)

    return _scenario("one_true_gain", seed, generator, flat_world(generator, gain), "noisy")


def harmful_arms(seed: int) -> Scenario:
    """Arms that lose just enough to matter, and a prior that praises them.

    True: every arm that drafts loses between 1.2 % and 5 %, at every batch size; idle costs
    nothing. Off is the optimum. The prior overrates every arm by 10 %, on top of errors of 5 %.
    """
    generator = _generator("harmful_arms", seed)
    loss = {
        arm: generator.uniform(0.0122, 0.05)
        for arm in product(NAMES, range(1, MAX_DRAFTS + 1), TEMPERATURES)
    }

    def gain(drafter: str, k: int, temperature: float | None) -> Mapping[int, float]:
        return dict.fromkeys(BATCH_SIZES, -loss[drafter, k, temperature])

    scenario = _scenario("harmful_arms", seed, generator, flat_world(generator, gain), "noisy")
    return replace(scenario, predictor=_overrated(scenario.predictor, 0.1))


def harmful_beside_gain(seed: int) -> Scenario:
    """Every drafter is worth loading at batch 1 and 4, and hurts at 16 and 64.

    True: at batch 1 and 4 arms gain 10 % to 30 %, less 1 % per K; at 16 and 64 they lose between
    1.2 % and 5 %. Idle costs up to 0.5 %. The optimum loads a drafter and sets K = 0 at 16 and 64.
    The prior overrates by 5 % at 16 and 64, on top of errors of 5 %.
    """
    generator = _generator("harmful_beside_gain", seed)
    up = {kind: generator.uniform(0.1, 0.3) for kind in product(NAMES, TEMPERATURES)}
    down = {
        arm: generator.uniform(0.0122, 0.05)
        for arm in product(NAMES, range(1, MAX_DRAFTS + 1), TEMPERATURES)
    }

    def gain(drafter: str, k: int, temperature: float | None) -> Mapping[int, float]:
        high = math.log1p(up[drafter, temperature]) - 0.01 * (k - 1)
        low = -down[drafter, k, temperature]
        return {1: high, 4: high, 16: low, 64: low}

    world = flat_world(generator, gain, idle=(0.0, 0.005))
    scenario = _scenario("harmful_beside_gain", seed, generator, world, "noisy")
    return replace(scenario, predictor=_overrated(scenario.predictor, 0.05, above=4))


def harmful_idle(seed: int) -> Scenario:
    """Drafters that are worth loading at batch 1 and 4, but not idle at 16 and 64.

    True: gains at batch 1 and 4 as in `harmful_beside_gain`; at 16 and 64 arms lose 5 % to 20 %,
    and so does each idle drafter by 1.5 % to 5 % at every batch size. Under the rule that no
    batch size may lose more than 1 %, off is the optimum.
    """
    generator = _generator("harmful_idle", seed)
    up = {kind: generator.uniform(0.1, 0.3) for kind in product(NAMES, TEMPERATURES)}
    down = {kind: generator.uniform(0.05, 0.1) for kind in product(NAMES, TEMPERATURES)}

    def gain(drafter: str, k: int, temperature: float | None) -> Mapping[int, float]:
        high = math.log1p(up[drafter, temperature]) - 0.01 * (k - 1)
        low = math.log1p(-down[drafter, temperature] * (1 + (k - 1) / MAX_DRAFTS))
        return {1: high, 4: high, 16: low, 64: low}

    world = flat_world(generator, gain, idle=(0.0153, 0.05))
    return _scenario("harmful_idle", seed, generator, world, "noisy")


def lucky(seed: int) -> Scenario:
    """As `harmful_arms`, and one of the first 40 blocks shows its arm 30 % faster than it is."""
    scenario = harmful_arms(seed)
    block = int(_generator("lucky", seed).integers(0, 40))
    return replace(scenario, family="lucky", noise=replace(scenario.noise, lucky_block=block))


def dying(seed: int) -> Scenario:
    """The drafter that would be best dies after 0 to 80 blocks.

    True: a system as in `general`, in which something is worth loading; the optimum is what the
    other drafters, or off, can give.
    """
    generator = _generator("dying", seed)
    while True:
        world = physical_world(random_system(generator), generator)
        kind = world.optimum().kind
        if kind is not None:
            break
    world = replace(world, fails_after={kind[0]: int(generator.integers(0, 81))})
    return _scenario("dying", seed, generator, world, "noisy")


def drifting(seed: int) -> Scenario:
    """Acceptance moves during the search, for all drafters alike.

    True: a system as in `general`; all acceptance probabilities end 20 % lower to 10 % higher, as
    far as they can be, after 200 to 2,000 device seconds. The prior knows the beginning only.
    """
    generator = _generator("drifting", seed)
    system = random_system(generator)
    world = physical_world(system, generator)
    drift = Drift(
        log_gains=system.log_gains(BATCH_SIZES, MAX_DRAFTS, generator.uniform(0.8, 1.1)),
        over_s=generator.uniform(200, 2000),
    )
    return _scenario("drifting", seed, generator, replace(world, drift=drift), "noisy")


FAMILIES: Mapping[str, Callable[[int], Scenario]] = {
    family.__name__: family
    for family in (
        general,
        useless,
        at_margin,
        at_zero,
        at_restart,
        margin_beside_gain,
        one_true_gain,
        harmful_arms,
        harmful_beside_gain,
        harmful_idle,
        lucky,
        dying,
        drifting,
    )
}
"""Every family by name."""


def members(family: Callable[[int], Scenario], count: int, first: int = 0) -> Iterator[Scenario]:
    """`count` scenarios of a family, from seed `first` on."""
    return (family(seed) for seed in range(first, first + count))


def _generator(family: str, seed: int) -> Generator:
    """Families share no randomness, and neither do seeds."""
    return np.random.default_rng([crc32(family.encode()), seed])


def _scenario(
    family: str,
    seed: int,
    generator: Generator,
    world: World,
    mode: PriorMode,
    error_sd: float = 0.05,
) -> Scenario:
    """A scenario with quiet noise: a drifting clock, and nothing else but blocks that vary."""
    return Scenario(
        family=family,
        seed=seed,
        world=world,
        noise=Noise(),
        predictor=predict(world, mode, generator, error_sd),
    )


def _exact(family: str, seed: int, log_gain: float) -> Scenario:
    generator = _generator(family, seed)
    world = flat_world(generator, lambda *_: dict.fromkeys(BATCH_SIZES, log_gain))
    return _scenario(family, seed, generator, world, "noisy")


def _is_spread(world: World) -> bool:
    """More than 10 % between the best and the worst, and arms that are 5 % below the best."""
    for size in world.batch_sizes:
        gains = [world.log_gain(config, size) for config in world.arms]
        best = world.best_arm(size)[1]
        if best - min(0.0, *gains) <= math.log(1.1) or min(gains) >= best - WORSE:
            return False
    return True


def _random_noise(generator: Generator) -> Noise:
    heavy, correlated, throttled, luck = generator.random(4) < (0.3, 0.2, 0.2, 0.25)
    return Noise(
        tails="t3" if heavy else "normal",
        autocorrelation=generator.uniform(0.1, 0.3) if correlated else 0.0,
        throttling=Throttling() if throttled else None,
        lucky_block=int(generator.integers(0, 60)) if luck else None,
    )


def _overrated(predictor: SimulatedPredictor, by: float, above: int = 0) -> SimulatedPredictor:
    """The same predictions, higher by `by` at batch sizes larger than `above`."""
    gains = {
        arm: gain + (math.log1p(by) if arm[0] > above else 0.0)
        for arm, gain in predictor.log_gains.items()
    }
    return replace(predictor, log_gains=gains)

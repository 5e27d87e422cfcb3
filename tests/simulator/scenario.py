"""Everything that one simulated search depends on."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator.noise import Noise
from tests.simulator.prior import SimulatedPredictor
from tests.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One member of a family.

    Attributes:
        family: Name of the family.
        seed: Which member; also the seed of the noise.
        world: What is true.
        noise: What hides it.
        predictor: What replay and the cost table say.
        prior_misleads: The prior's argmax is more than 5 % below the best at every batch size,
            by construction.
    """

    family: str
    seed: int
    world: World
    noise: Noise
    predictor: SimulatedPredictor
    prior_misleads: bool = False

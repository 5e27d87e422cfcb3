"""The flattened search space: every point means an arm that exists."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autotune.tuning.arms import SearchSpace
from policies.types import OFF, SpeculativeConfig

TEMPERATURES: dict[str, list[float | None]] = {
    "ngram": [None],
    "layer-skip-2": [None, 0.0, 0.7],
    "draft": [0.0, 1.3],  # none that follows the request
}
SPACE = SearchSpace(TEMPERATURES, 4)


def points(space: SearchSpace) -> list[dict[str, Any]]:
    """Every point that a sampler can propose."""
    choices: list[list[Any]] = []
    for distribution in space.distributions.values():
        if isinstance(distribution, CategoricalDistribution):
            choices.append(list(distribution.choices))
        else:
            assert isinstance(distribution, IntDistribution)
            choices.append(list(range(distribution.low, distribution.high + 1)))
    return [dict(zip(space.distributions, values, strict=True)) for values in product(*choices)]


def test_every_point_is_an_arm_that_exists() -> None:
    """No draft temperature is paired with a drafter that was never replayed at it."""
    for point in points(SPACE):
        config = SPACE.config(point)
        if config.speculates:
            assert config.draft_temperature in TEMPERATURES[config.drafter]
        else:
            assert config.draft_temperature is None


def test_every_arm_is_reached() -> None:
    """Off, each drafter idle, and each drafter with each K and each of its temperatures."""
    wanted = {OFF} | {SpeculativeConfig(drafter=name) for name in TEMPERATURES}
    wanted |= {
        SpeculativeConfig(drafter=name, num_speculative_tokens=k, draft_temperature=temperature)
        for name, temperatures in TEMPERATURES.items()
        for temperature in temperatures
        for k in range(1, 5)
    }

    assert {SPACE.config(point) for point in points(SPACE)} == wanted


@pytest.mark.parametrize(
    "config",
    [
        OFF,
        SpeculativeConfig(drafter="ngram", num_speculative_tokens=3),
        SpeculativeConfig(drafter="layer-skip-2", num_speculative_tokens=1, draft_temperature=0.7),
        SpeculativeConfig(drafter="draft", num_speculative_tokens=4, draft_temperature=0.0),
        SpeculativeConfig(drafter="draft"),
    ],
    ids=SpeculativeConfig.label,
)
def test_an_arm_survives_the_way_there_and_back(config: SpeculativeConfig) -> None:
    """Parameters of an arm are inside the space and mean that arm."""
    params = SPACE.params(config)

    assert params in points(SPACE)
    assert SPACE.config(params) == config


def test_without_drafters_only_off_is_left() -> None:
    """A session in which every drafter was skipped still has a space."""
    assert {SearchSpace({}, 4).config(point) for point in points(SearchSpace({}, 4))} == {OFF}

"""Which layers a drafter reads or starts from, and what a target must have."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.errors import ConfigError
from autotune.training.settings import TrainSettings
from autotune.training.students import (
    check_target,
    feature_layers,
    kept_layers,
    make_apprentice,
    recorded_layers,
)
from tests.support.tiny_models import tiny_config
from tests.support.training import tiny_examples, tiny_teacher


def settings(**values: Any) -> TrainSettings:
    """Settings with what is required."""
    return TrainSettings.parse({"method": "eagle3", "out": Path("/tmp/draft")} | values)


def test_the_reference_rule() -> None:
    """Inputs of layers 2, half and the last but three, as published heads for large targets."""
    assert feature_layers(30) == (2, 15, 27)
    assert feature_layers(32) == (2, 16, 29)


@pytest.mark.parametrize("num_layers", range(3, 40))
def test_feature_layers_ascend(num_layers: int) -> None:
    """Three different inputs of layers that exist."""
    layers = feature_layers(num_layers)
    assert all(a < b for a, b in pairwise(layers))
    assert layers[0] >= 0
    assert layers[-1] < num_layers


@pytest.mark.parametrize("kept", range(1, 6))
def test_kept_layers(kept: int) -> None:
    """As many as asked for, different, with the last among them and the first if there are two."""
    layers = kept_layers(kept, 6)
    assert len(layers) == kept
    assert all(a < b for a, b in pairwise(layers))
    assert layers[-1] == 5
    assert layers[0] == (5 if kept == 1 else 0)


def test_what_is_recorded() -> None:
    """Final states for either method; the three features only where they are read."""
    config = tiny_config(num_layers=30)
    assert recorded_layers("eagle3", config) == (2, 15, 27, 30)
    assert recorded_layers("layer-pruned", config) == (30,)


def test_targets_that_are_too_flat() -> None:
    """The message names the setting and its range."""
    with pytest.raises(ConfigError, match=r"num_layers = 3: the target has 3 layers.*1 to 2"):
        check_target(settings(method="layer-pruned", num_layers=3), tiny_config())
    with pytest.raises(ConfigError, match="reads three layers of the target"):
        check_target(settings(), tiny_config(num_layers=2))
    check_target(settings(method="layer-pruned", num_layers=2), tiny_config())
    check_target(settings(), tiny_config())


def test_the_seed_gives_the_first_weights(tmp_path: Path) -> None:
    """Whatever random numbers were drawn before."""
    teacher = tiny_teacher()
    examples = tiny_examples(teacher, tmp_path)

    def weights(seed: int) -> torch.Tensor:
        torch.randn(3)
        made = make_apprentice(settings(seed=seed), tmp_path, teacher, examples)
        found: torch.Tensor = made.student.module.state_dict()["fc.weight"]
        return found

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_the_draft_vocabulary(tmp_path: Path) -> None:
    """As large as asked for, and never larger than the target's; a pruned draft has no limit."""
    teacher = tiny_teacher()
    examples = tiny_examples(teacher, tmp_path)
    small = make_apprentice(settings(draft_vocab_size=5), tmp_path, teacher, examples)
    assert small.draft_vocab_size == 5
    assert int(small.student.module.state_dict()["t2d"].sum()) == 5
    whole = make_apprentice(settings(), tmp_path, teacher, examples)
    assert whole.draft_vocab_size == teacher.config.vocab_size
    draft = make_apprentice(
        settings(method="layer-pruned", num_layers=2), tmp_path, teacher, examples
    )
    assert (draft.draft_vocab_size, draft.layers) == (None, (0, 2))
    assert draft.num_parameters == sum(
        tensor.numel() for tensor in draft.student.module.state_dict().values()
    )

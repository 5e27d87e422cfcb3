"""The state of a run on disk: complete, exact, and refused where it does not belong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from engine.errors import TrainingError
from engine.training.state import (
    BEST_NAME,
    STATE_NAME,
    Evaluation,
    TrainingState,
    load_best,
    load_state,
    save_best,
    save_state,
)

EVALUATION = Evaluation(
    elapsed_s=12.5,
    step=7,
    num_tokens=100,
    loss=1.25,
    acceptance=(0.5, 0.25),
    tokens_per_round={"chat": 1.5, "code": 1.75},
    score=1.625,
)


def learner(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module and its optimiser."""
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    return module, torch.optim.AdamW(module.parameters(), lr=0.1)


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step on fixed data."""
    optimizer.zero_grad()
    module(torch.ones(1, 3)).square().sum().backward()
    optimizer.step()


def test_a_run_goes_on_as_if_nothing_happened(tmp_path: Path) -> None:
    """Weights and optimiser are exact: the next step is the same one."""
    module, optimizer = learner()
    step(module, optimizer)
    state = TrainingState("f", 12.5, 7, 2, 3, 100, [EVALUATION])
    save_state(tmp_path, state, module, optimizer)
    other, other_optimizer = learner(seed=1)
    found = load_state(tmp_path, "f", other, other_optimizer)
    step(module, optimizer)
    step(other, other_optimizer)
    assert found == state
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    """An empty folder starts a run."""
    assert load_state(tmp_path, "f", *learner()) is None


def test_another_run_is_refused(tmp_path: Path) -> None:
    """Its data or settings differ: the message says what to do."""
    module, optimizer = learner()
    step(module, optimizer)
    save_state(tmp_path, TrainingState("f"), module, optimizer)
    with pytest.raises(TrainingError, match="other data or settings; name another folder"):
        load_state(tmp_path, "g", module, optimizer)


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    """One line with the file."""
    module, optimizer = learner()
    (tmp_path / STATE_NAME).write_bytes(content)
    (tmp_path / BEST_NAME).write_bytes(content)
    with pytest.raises(TrainingError, match=STATE_NAME):
        load_state(tmp_path, "f", module, optimizer)
    with pytest.raises(TrainingError, match=BEST_NAME):
        load_best(tmp_path, module)


def test_best_weights(tmp_path: Path) -> None:
    """What was saved comes back, whatever was learned since."""
    module, optimizer = learner()
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    save_best(tmp_path, module)
    step(module, optimizer)
    load_best(tmp_path, module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, kept[name])


def test_the_earlier_of_equals_is_best() -> None:
    """No weights are replaced by later ones that are no better."""
    again = Evaluation(
        elapsed_s=20.0,
        step=9,
        num_tokens=120,
        loss=1.0,
        acceptance=(0.6, 0.3),
        tokens_per_round={},
        score=EVALUATION.score,
    )
    assert TrainingState("f", history=[EVALUATION, again]).best is EVALUATION
    assert TrainingState("f").best is None

"""The state of a training run on disk: one file, replaced whole, so a kill loses one interval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.errors import TrainingError

STATE_NAME = "training-state.safetensors"
BEST_NAME = "best.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One point of the learning curve.

    Attributes:
        elapsed_s: Seconds of training, evaluations and pauses left out.
        step: Optimiser steps.
        num_tokens: Answer tokens seen.
        loss: Mean since the evaluation before.
        acceptance: Mean of sum min(p, q) by draft position, on the training data, likewise.
        tokens_per_round: On held-out answers, by task.
        score: Their mean over the buckets: what is maximised.
    """

    elapsed_s: float
    step: int
    num_tokens: int
    loss: float
    acceptance: tuple[float, ...]
    tokens_per_round: dict[str, float]
    score: float


@dataclass(slots=True)
class TrainingState:
    """Where a run stands.

    Attributes:
        fingerprint: Of data and settings; a state of another run is refused.
        elapsed_s: Seconds of training.
        step: Optimiser steps.
        epoch: Passes over the data begun, from 0.
        batch: Batches done in this pass.
        num_tokens: Answer tokens seen.
        history: Evaluations so far.
        finished: The run ended by itself.
    """

    fingerprint: str
    elapsed_s: float = 0.0
    step: int = 0
    epoch: int = 0
    batch: int = 0
    num_tokens: int = 0
    history: list[Evaluation] = field(default_factory=list)
    finished: bool = False

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation so far; the earlier of equals."""
        return max(self.history, key=lambda e: e.score, default=None)


def save_state(
    folder: Path, state: TrainingState, module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write weights, optimiser and position as one file."""
    tensors = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
    for index, held in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in held.items()}
    _write(folder / STATE_NAME, tensors, {"state": json.dumps(asdict(state))})


def load_state(
    folder: Path, fingerprint: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingState | None:
    """Continue a run: fills module and optimiser; None where there is nothing to continue.

    Raises:
        TrainingError: The file is damaged, or belongs to another run.
    """
    path = folder / STATE_NAME
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values: dict[str, Any] = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # no mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"{path}: not a usable training state ({error})") from error
    if values["fingerprint"] != fingerprint:
        raise TrainingError(
            f"{folder}: holds a run with other data or settings; name another folder or remove it"
        )
    module.load_state_dict(_part(tensors, "module."))
    held: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        held.setdefault(int(index), {})[key] = tensor.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": held})
    history = [
        Evaluation(**{**entry, "acceptance": tuple(entry["acceptance"])})
        for entry in values.pop("history")
    ]
    return TrainingState(**values, history=history)


def save_best(folder: Path, module: nn.Module) -> None:
    """Keep the weights of the best evaluation."""
    _write(folder / BEST_NAME, module.state_dict(), {})


def load_best(folder: Path, module: nn.Module) -> None:
    """Fill a module with the best weights.

    Raises:
        TrainingError: They are missing or damaged.
    """
    path = folder / BEST_NAME
    try:
        with safe_open(path, framework="pt") as file:
            module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise TrainingError(f"{path}: not usable weights ({error})") from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    scratch = path.with_suffix(".part")
    save_file({name: t.contiguous() for name, t in tensors.items()}, scratch, metadata)
    scratch.replace(path)

"""The settings a peer can run in, and which of them is its best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Launch = Literal["in-process", "in-process, Intel OpenMP", "engine process"]

DTYPES = ("float32", "bfloat16")
_WORTH_COMPILING = 0.5  # of the best eager rate: compiling never doubled one


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Settings of one process.

    Attributes:
        dtype: Of weights and computation.
        compiled: vLLM only: torch.compile.
        launch: vLLM only: where its engine runs and with which thread library.
    """

    dtype: str
    compiled: bool = False
    launch: Launch = "in-process"

    def describe_vllm(self) -> str:
        """In words, for vLLM."""
        return f"{self.dtype}, {'compiled' if self.compiled else 'eager'}, {self.launch}"


Rates = Mapping[Mode, Mapping[str, float]]
"""Tokens per second by mode and task; a mode need not have been tried on every task."""


def best_modes(rates: Rates) -> dict[str, Mode]:
    """The fastest mode for each task; the first of equals."""
    best: dict[str, Mode] = {}
    for mode, by_task in rates.items():
        for task, rate in by_task.items():
            if task not in best or rate > rates[best[task]][task]:
                best[task] = mode
    return best


def worth_compiling(eager: Rates) -> list[Mode]:
    """The eager modes that are near the best of them at some task, in their order."""
    best = best_modes(eager)
    return [
        mode
        for mode, by_task in eager.items()
        if any(rate >= _WORTH_COMPILING * eager[best[task]][task] for task, rate in by_task.items())
    ]


def tasks_won(best: Mapping[str, Mode]) -> dict[Mode, list[str]]:
    """For each mode that is best anywhere, the tasks it wins."""
    won: dict[Mode, list[str]] = {}
    for task, mode in best.items():
        won.setdefault(mode, []).append(task)
    return won


def other_launches(modes: Iterable[Mode], launches: Sequence[Launch]) -> list[Mode]:
    """The same settings, launched otherwise."""
    return [
        Mode(dtype=mode.dtype, compiled=mode.compiled, launch=launch)
        for mode in modes
        for launch in launches
        if launch != mode.launch
    ]

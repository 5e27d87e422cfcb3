"""A bench, a predictor and a store for searches that need no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import exp
from random import Random
from typing import cast

from autotune.tuning.belief import Cell
from autotune.tuning.blocks import Ledger
from autotune.tuning.paired_block import Bench, PairedBlock, Tally
from engine.errors import NumericError
from policies.types import SpeculativeConfig
from store.repository import Store

_RUN_ID = "00000000-0000-4000-8000-000000000000"
_SECONDS = 1.0
_OFF_TOKENS_PER_S = 100_000.0  # so large that whole tokens do not blur a gain
_TOKENS = 100_000

Gain = Callable[[SpeculativeConfig, int, str, int], float]
"""Log ratio of a block: of an arm, a batch size, a stage and the block's number in it."""


def config(drafter: str, k: int, temperature: float | None = None) -> SpeculativeConfig:
    """A short name for an arm."""
    return SpeculativeConfig(
        drafter=drafter, num_speculative_tokens=k, draft_temperature=temperature
    )


def arms_of(*drafters: str, largest: int = 4) -> tuple[SpeculativeConfig, ...]:
    """K from 1 to `largest` of some drafters, at one draft temperature."""
    return tuple(config(name, k) for name in drafters for k in range(1, largest + 1))


class NoStore:
    """Takes every record and keeps none."""

    def add_measurement(self, record: object) -> None:
        """Forget it."""

    def add_failure(self, record: object) -> None:
        """Forget it."""


def ledger_without_store(
    bench: Bench, request_std_error: Callable[[SpeculativeConfig], float] = lambda config: 0.0
) -> Ledger:
    """A ledger that keeps its blocks at hand only."""
    return Ledger(cast(Store, NoStore()), _RUN_ID, bench, request_std_error)


class ScriptedBench:
    """Blocks whose log ratios are given, with normal noise on top.

    Attributes:
        asked: Every block that was begun, in order.
        lasts: Blocks after which a drafter fails, by drafter.
        disturbed: Whether a block is disturbed, by its place among all blocks.
    """

    def __init__(
        self, gain: Gain, *, noise_sd: float = 0.0, idle_noise_sd: float = 0.0, seed: int = 0
    ) -> None:
        self._gain = gain
        self._noise_sd = noise_sd
        self._idle_noise_sd = idle_noise_sd
        self._random = Random(seed)
        self.asked: list[tuple[SpeculativeConfig, int, str, int]] = []
        self.lasts: dict[str, int] = {}
        self.disturbed: Callable[[int], bool] = lambda place: False

    def measure(
        self, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> PairedBlock:
        """The block of that name, or an error once its drafter is dead."""
        place = len(self.asked)
        self.asked.append((config, batch_size, stage, index))
        drafter = config.drafter
        if self.num_of(drafter) > self.lasts.get(drafter, len(self.asked)):
            raise NumericError(f"{drafter}: logits are not finite")
        noise_sd = self._noise_sd if config.speculates else self._idle_noise_sd
        log_ratio = self._gain(config, batch_size, stage, index)
        log_ratio += noise_sd * self._random.gauss(0, 1)
        return PairedBlock(
            Tally(num_tokens=_TOKENS, seconds=_SECONDS),
            Tally(num_tokens=_TOKENS, seconds=_SECONDS * exp(-log_ratio)),
            self.disturbed(place),
        )

    def num_of(self, drafter: str) -> int:
        """Blocks of a drafter that were begun."""
        return sum(config.drafter == drafter for config, *_ in self.asked)

    def by_cell(self, stage: str) -> Counter[Cell]:
        """Blocks of a stage that were begun, by batch size and arm."""
        return Counter((size, config) for config, size, at, _ in self.asked if at == stage)


class TablePredictor:
    """Predicts given log gains."""

    def __init__(self, log_gains: Mapping[Cell, float]) -> None:
        self._log_gains = log_gains

    def off_tokens_per_s(self, batch_size: int) -> float:
        """The same at every batch size."""
        return _OFF_TOKENS_PER_S

    def tokens_per_s(self, config: SpeculativeConfig, batch_size: int) -> float:
        """An idle drafter is predicted to cost nothing."""
        gain = self._log_gains[batch_size, config] if config.speculates else 0.0
        return _OFF_TOKENS_PER_S * exp(gain)


def predictions(
    arms: Iterable[SpeculativeConfig],
    batch_sizes: Iterable[int],
    gain: Callable[[SpeculativeConfig, int], float],
) -> dict[Cell, float]:
    """A table of every arm at every batch size."""
    arms = tuple(arms)
    return {(size, arm): gain(arm, size) for size in batch_sizes for arm in arms}

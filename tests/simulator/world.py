"""What is true in a simulation: the gain of every arm, and the best that could be published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.types import OFF, OFF_DRAFTER, SpeculativeConfig
from tests.simulator.arms import Arm, arm_config

Kind = tuple[str, float | None]
"""A drafter and a draft temperature: what one server can have loaded."""

HARM = 0.01
"""Loss against unloaded off that no batch size may have while a drafter is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Gains that move while the search goes on.

    Attributes:
        log_gains: Where they end.
        over_s: Device seconds until then; they move evenly, and stay afterwards.
    """

    log_gains: Mapping[Arm, float]
    over_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best table.

    Attributes:
        kind: What is loaded, or None for nothing.
        arms: The best arm at each batch size, among K = 0 and every K of the kind.
        log_gains: Their true log gains over unloaded off.
        total: Weighted sum of those.
    """

    kind: Kind | None
    arms: Mapping[int, SpeculativeConfig]
    log_gains: Mapping[int, float]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """True log gains over unloaded off, whose own is 0.

    Attributes:
        temperatures: Draft temperatures of each drafter, as the search may use them.
        max_num_speculative_tokens: Largest K.
        off_tokens_per_s: Rate of unloaded off at each batch size.
        log_gains: Of every arm that drafts, and of every drafter at K = 0, over all traffic.
        drift: None where nothing moves.
        sample_shifts: What the choice of requests adds to the log gain of an arm at every batch
            size: all that the search can measure is moved by it. 0 where an arm is missing.
        request_std_errors: Standard deviation of those shifts, which the search is told.
        fails_after: Blocks after which a drafter dies, by drafter.
        weights: Share of the traffic's time at each batch size, adding up to 1; None for
            uniform.
    """

    temperatures: Mapping[str, tuple[float | None, ...]]
    max_num_speculative_tokens: int
    off_tokens_per_s: Mapping[int, float]
    log_gains: Mapping[Arm, float]
    drift: Drift | None = None
    sample_shifts: Mapping[SpeculativeConfig, float] = field(default_factory=dict)
    request_std_errors: Mapping[SpeculativeConfig, float] = field(default_factory=dict)
    fails_after: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[int, float] | None = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the search, ascending."""
        return tuple(sorted(self.off_tokens_per_s))

    @property
    def shares(self) -> Mapping[int, float]:
        """Weight of every batch size."""
        return self.weights or dict.fromkeys(self.batch_sizes, 1 / len(self.batch_sizes))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Everything that could be loaded."""
        return tuple((name, t) for name, values in self.temperatures.items() for t in values)

    @property
    def arms(self) -> tuple[SpeculativeConfig, ...]:
        """Every arm that drafts, as the search is given them."""
        return tuple(
            arm_config(name, k, temperature)
            for name, temperature in self.kinds
            for k in range(1, self.max_num_speculative_tokens + 1)
        )

    def log_gain(self, config: SpeculativeConfig, batch_size: int, at_s: float = 0.0) -> float:
        """True log gain of an arm over unloaded off, over all traffic.

        Args:
            config: Any arm; a draft temperature means nothing at K = 0.
            batch_size: One of `batch_sizes`.
            at_s: Device seconds since the search began.
        """
        if config.is_off:
            return 0.0
        arm = batch_size, config if config.speculates else arm_config(config.drafter, 0)
        gain = self.log_gains[arm]
        if self.drift:
            gain += min(at_s / self.drift.over_s, 1.0) * (self.drift.log_gains[arm] - gain)
        return gain

    def measurable(self, config: SpeculativeConfig, batch_size: int, at_s: float = 0.0) -> float:
        """What endless measurement on the chosen requests would find for an arm."""
        return self.log_gain(config, batch_size, at_s) + self.sample_shifts.get(config, 0.0)

    def weighted(self, log_gains: Mapping[int, float]) -> float:
        """What an envelope is worth: the weighted sum of its log gains by batch size."""
        return math.fsum(share * log_gains[size] for size, share in self.shares.items())

    def best_arm(self, batch_size: int, at_s: float = 0.0) -> tuple[SpeculativeConfig, float]:
        """The best arm of one batch size and its log gain, off included, dying drafters not."""
        return self._best([kind for kind in self.kinds if self._lives(kind)], batch_size, at_s, OFF)

    def best_within(self, kind: Kind | None, at_s: float = 0.0) -> Optimum:
        """The best table of one envelope, over every K and the idle drafter; None is off."""
        found = {
            size: self._best([kind], size, at_s, arm_config(kind[0], 0)) if kind else (OFF, 0.0)
            for size in self.batch_sizes
        }
        return Optimum(
            kind=kind,
            arms={size: config for size, (config, _) in found.items()},
            log_gains={size: gain for size, (_, gain) in found.items()},
            total=self.weighted({size: gain for size, (_, gain) in found.items()}),
        )

    def optimum(self, at_s: float = 0.0, harm: float = HARM) -> Optimum:
        """The best table of all envelopes that slow no batch size down by more than `harm`.

        Drafters that die are no part of it; ties go to off.
        """
        limit = math.log1p(-harm)
        tables = [self.best_within(kind, at_s) for kind in self.kinds if self._lives(kind)]
        harmless = [table for table in tables if min(table.log_gains.values()) >= limit]
        return max([self.best_within(None), *harmless], key=lambda table: table.total)

    def _lives(self, kind: Kind) -> bool:
        return kind[0] not in self.fails_after

    def _best(
        self, kinds: list[Kind], batch_size: int, at_s: float, rest: SpeculativeConfig
    ) -> tuple[SpeculativeConfig, float]:
        """The best arm of some kinds, or `rest` if it is no worse; at ties the smaller K."""
        best = rest
        best_gain = self.log_gain(rest, batch_size, at_s)
        for k in range(1, self.max_num_speculative_tokens + 1):
            for name, temperature in kinds:
                config = arm_config(name, k, temperature)
                gain = self.log_gain(config, batch_size, at_s)
                if gain > best_gain:
                    best, best_gain = config, gain
        return best, best_gain


def kind_of(drafter: str, draft_temperature: float | None) -> Kind | None:
    """The kind that an envelope loads; None for off."""
    return None if drafter == OFF_DRAFTER else (drafter, draft_temperature)

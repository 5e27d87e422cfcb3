"""Which arm to measure next: where the choice could be wrong, by what is believed.

The choice is what would be published by the expected gains: one drafter and draft temperature for
all batch sizes, and K for each. In samples of the belief another choice is better here and there;
one such sample is drawn, the likelier the more it would gain, and of the two arms in which both
choices differ the one is measured that is less certain. Source: top-two Thompson sampling (Russo
2016), with samples weighted by their regret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.tuning.belief import Belief, Cell, Floats
from policies.types import OFF, SpeculativeConfig

Kind = tuple[str, float | None]
"""Drafter and draft temperature: what one server loads."""

_NUM_SAMPLES = 192
TOLERANCE = 0.015  # log gain that the choice may lie below the best
_DOUBT = 0.02  # share of the samples that may find it to be more


@dataclass(frozen=True, slots=True)
class Choice:
    """What the belief would publish.

    Attributes:
        kind: What is loaded; None is off.
        arms: By batch size, off where no K of the kind is expected to gain.
    """

    kind: Kind | None
    arms: Mapping[int, SpeculativeConfig]


class Explorer:
    """Proposes cells to measure."""

    def __init__(
        self,
        belief: Belief,
        arms: Sequence[SpeculativeConfig],
        weights: Mapping[int, float],
        seed: int,
    ) -> None:
        """Prepare.

        Args:
            belief: Over every arm at every batch size.
            arms: All that speculate.
            weights: Share of the traffic's time at each batch size, adding up to 1.
            seed: Of the choice among samples.
        """
        self._belief = belief
        self._weights = dict(weights)
        self._generator = np.random.default_rng(seed)
        self._columns: dict[Kind, dict[int, list[int]]] = {}
        for arm in arms:
            kind = arm.drafter, arm.draft_temperature
            by_size = self._columns.setdefault(kind, {size: [] for size in self._weights})
            for size in self._weights:
                by_size[size].append(belief.index[size, arm])

    def discard(self, drafter: str) -> None:
        """A drafter does not work."""
        self._columns = {kind: by for kind, by in self._columns.items() if kind[0] != drafter}

    def choice(self, excluded: frozenset[Kind] = frozenset()) -> Choice:
        """The best by expected gains."""
        mean = self._belief.mean()
        values = {
            kind: self._value(mean[None, :], by_size)[0]
            for kind, by_size in self._columns.items()
            if kind not in excluded
        }
        kind = max(values, key=lambda one: values[one], default=None)
        if kind is None or values[kind] <= 0:
            return Choice(None, dict.fromkeys(self._weights, OFF))
        return Choice(kind, {size: self._arm(mean, kind, size) for size in self._weights})

    def arm(self, kind: Kind, size: int) -> SpeculativeConfig:
        """The best K of a kind at a batch size by expected gains, or off."""
        return self._arm(self._belief.mean(), kind, size)

    def favourite(self, size: int) -> SpeculativeConfig | None:
        """The arm with the best expected gain at a batch size, if only the least loss."""
        columns = [i for by_size in self._columns.values() for i in by_size[size]]
        mean = self._belief.mean()
        best = max(columns, key=lambda i: mean[i], default=None)
        return None if best is None else self._belief.cells[best][1]

    def propose(self) -> Cell | None:
        """The next cell; None once the choice is hardly ever off by more than `TOLERANCE`."""
        if not self._columns:
            return None
        samples = self._belief.samples(_NUM_SAMPLES)
        choice = self.choice()
        now = self._gains(samples, choice.arms)
        within = self._within(samples, choice.kind, now)
        total = sum(self._weights[size] * gain for size, gain in now.items())
        kinds = list(self._columns)
        values = np.stack([self._value(samples, self._columns[kind]) for kind in kinds], axis=1)
        across = np.maximum(values.max(axis=1), 0.0) - total
        row = self._pick(np.maximum(within.max(axis=1), across))
        if row is None:
            return None
        if choice.kind is not None and within[row].max() >= across[row]:
            return self._doubted(samples[row], choice.kind, choice.arms, within[row])
        if values[row].max() <= 0:
            # Off would be better: the arm to doubt is one that is chosen.
            return self._least_certain(list(choice.arms.items()))
        kind = kinds[int(values[row].argmax())]
        one = samples[row : row + 1]
        leads = np.array([self._best(one, kind, s)[0] - now[s][row] for s in self._weights])
        return self._doubted(samples[row], kind, choice.arms, leads)

    def propose_within(self, kind: Kind, arms: Mapping[int, SpeculativeConfig]) -> Cell | None:
        """The next cell where only K can still change; None as in `propose`.

        Args:
            kind: What is loaded.
            arms: What would be published for each batch size.
        """
        samples = self._belief.samples(_NUM_SAMPLES)
        within = self._within(samples, kind, self._gains(samples, arms))
        row = self._pick(within.max(axis=1))
        return None if row is None else self._doubted(samples[row], kind, arms, within[row])

    def _pick(self, regret: Floats) -> int | None:
        """A sample, by its regret; None if hardly any has much."""
        if float((regret > TOLERANCE).mean()) <= _DOUBT:
            return None
        chances = np.maximum(regret, 0.0) ** 2
        return int(self._generator.choice(len(regret), p=chances / chances.sum()))

    def _doubted(
        self, sample: Floats, kind: Kind, arms: Mapping[int, SpeculativeConfig], leads: Floats
    ) -> Cell | None:
        """Where a sample leads most: its arm or the chosen one."""
        size = list(self._weights)[int(leads.argmax())]
        return self._least_certain([(size, self._arm(sample, kind, size)), (size, arms[size])])

    def _gains(self, samples: Floats, arms: Mapping[int, SpeculativeConfig]) -> dict[int, Floats]:
        """[samples] for each batch size."""
        return {size: self._gain(samples, size, arm) for size, arm in arms.items()}

    def _within(self, samples: Floats, kind: Kind | None, now: Mapping[int, Floats]) -> Floats:
        """[samples, batch sizes], what the best K of a kind has over what is chosen."""
        return np.stack([self._best(samples, kind, s) - gain for s, gain in now.items()], axis=1)

    def _least_certain(self, cells: list[Cell]) -> Cell | None:
        """The cell of which another block would teach the most; off needs none."""
        variance = self._belief.variance()

        def drop(cell: Cell) -> float:
            spread = float(variance[self._belief.index[cell]])
            return spread**2 / (spread + self._belief.block_sd(cell[0]) ** 2)

        return max((cell for cell in cells if cell[1].speculates), key=drop, default=None)

    def _best(self, samples: Floats, kind: Kind | None, size: int) -> Floats:
        """[samples], gain of the best K of a kind at a batch size, 0 included."""
        if kind is None:
            return np.zeros(len(samples))
        best: Floats = np.maximum(samples[:, self._columns[kind][size]].max(axis=1), 0.0)
        return best

    def _value(self, samples: Floats, by_size: Mapping[int, list[int]]) -> Floats:
        """[samples], weighted gain of a kind with the best K everywhere."""
        terms = [
            weight * np.maximum(samples[:, by_size[size]].max(axis=1), 0.0)
            for size, weight in self._weights.items()
        ]
        return np.asarray(np.sum(terms, axis=0))

    def _gain(self, samples: Floats, size: int, arm: SpeculativeConfig) -> Floats:
        if not arm.speculates:
            return np.zeros(len(samples))
        return samples[:, self._belief.index[size, arm]]

    def _arm(self, gains: Floats, kind: Kind, size: int) -> SpeculativeConfig:
        """The best arm of a kind, or off."""
        columns = self._columns[kind][size]
        best = columns[int(gains[columns].argmax())]
        return self._belief.cells[best][1] if gains[best] > 0 else OFF

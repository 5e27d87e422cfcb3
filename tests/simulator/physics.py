"""From made-up drafters and hardware to the log gain of every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import SpeculativeConfig
from tests.simulator.acceptance import Acceptance, Floats
from tests.simulator.arms import Arm, arm_config
from tests.simulator.latency import Draft, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter.

    Attributes:
        acceptance: How well its drafts fit.
        cost: What they take.
        temperature_scales: Its draft temperatures, each with the factor that it puts on every
            acceptance probability.
        proposes: Share of the rounds in which it has a proposal at all; it drafts K tokens then.
        idle_share: How much longer a step takes while it is loaded and K = 0.
    """

    acceptance: Acceptance
    cost: Draft
    temperature_scales: Mapping[float | None, float]
    proposes: float = 1.0
    idle_share: float = 0.0

    def log_tokens_per_round(self, max_drafts: int, factor: float = 1.0) -> Floats:
        """[temperatures, max_drafts] log tau_K, all acceptance probabilities times `factor`."""
        scales = factor * np.array(list(self.temperature_scales.values()))
        drafted = self.acceptance.tokens_per_round(scales, max_drafts)
        logs: Floats = np.log1p(self.proposes * (drafted - 1))
        return logs


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A target and the drafters that were made for it."""

    target: Target
    drafters: Mapping[str, Drafter]

    def off_tokens_per_s(self, batch_sizes: Sequence[int]) -> dict[int, float]:
        """Rate without a drafter in memory."""
        rows = np.array(batch_sizes, dtype=np.float64)
        rates = rows / self.target.step_s(rows, rows)
        return dict(zip(batch_sizes, rates.tolist(), strict=True))

    def log_gains(
        self, batch_sizes: Sequence[int], max_drafts: int, factor: float = 1.0
    ) -> dict[Arm, float]:
        """Log gain over unloaded off of every arm that drafts, and of K = 0 of every drafter.

        Args:
            batch_sizes: Requests in a step.
            max_drafts: Largest K.
            factor: On all acceptance probabilities.
        """
        rows = np.array(batch_sizes, dtype=np.float64)[:, None]
        drafts = np.arange(1, max_drafts + 1, dtype=np.float64)
        off_s = self.target.step_s(rows, rows)
        gains: dict[Arm, float] = {}
        for name, drafter in self.drafters.items():
            # Rows that have no proposal bring one token to the pass, as in a real batch.
            verify_s = self.target.step_s(rows, rows * (1 + drafter.proposes * drafts))
            log_s = np.log((verify_s + drafter.cost.proposal_s(rows, drafts)) / off_s)
            by_temperature = drafter.log_tokens_per_round(max_drafts, factor)
            table = (by_temperature[:, None, :] - log_s).tolist()  # [temperatures, sizes, K]
            for temperature, by_size in zip(drafter.temperature_scales, table, strict=True):
                for size, by_k in zip(batch_sizes, by_size, strict=True):
                    for k, gain in enumerate(by_k, start=1):
                        gains[size, arm_config(name, k, temperature)] = gain
            for size in batch_sizes:
                gains[size, arm_config(name, 0)] = -float(np.log1p(drafter.idle_share))
        return gains

    def request_std_errors(
        self, max_drafts: int, relative_sd: float
    ) -> dict[SpeculativeConfig, float]:
        """Standard error of log tau_K if the requests move every acceptance by `relative_sd`."""
        errors = {}
        for name, drafter in self.drafters.items():
            high = drafter.log_tokens_per_round(max_drafts, 1 + relative_sd)
            low = drafter.log_tokens_per_round(max_drafts, 1 - relative_sd)
            for temperature, by_k in zip(
                drafter.temperature_scales, ((high - low) / 2).tolist(), strict=True
            ):
                for k, error in enumerate(by_k, start=1):
                    errors[arm_config(name, k, temperature)] = error
        return errors

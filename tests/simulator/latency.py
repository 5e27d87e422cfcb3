"""Time of steps on made-up hardware: a roofline with staircases, odd kernels and experts.

Source of the forms: memory time against compute time, distinct experts N (1 - (1 - k/N)^tokens),
padding to tiles or captured graph sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.simulator.acceptance import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The part of a mixture-of-experts target that is read on demand.

    Attributes:
        count: Experts of a layer.
        active: Experts that a token uses.
        weights_share: Share of the target's weights that lies in them.
    """

    count: int
    active: int
    weights_share: float

    def read_share(self, tokens: Floats) -> Floats:
        """Share of all weights that a step over `tokens` tokens reads, routed evenly."""
        touched = 1 - (1 - self.active / self.count) ** tokens
        share: Floats = 1 - self.weights_share + self.weights_share * touched
        return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Step time of the target.

    Attributes:
        weights_s: Seconds to read all weights.
        token_s: Seconds to compute one token; `weights_s / token_s` is the ridge in tokens.
        row_s: Seconds to read one row's context.
        host_s: Seconds that no hardware shortens.
        sizes: Token counts that steps are padded to, ascending; a step beyond the last is not
            padded. Empty for no staircase.
        few_tokens: Steps below this many tokens run on other kernels,
        few_factor: which are slower by this factor: one row can be slower than four.
        experts: None for a dense target.
    """

    weights_s: float
    token_s: float
    row_s: float = 0.0
    host_s: float = 0.0
    sizes: tuple[int, ...] = ()
    few_tokens: int = 0
    few_factor: float = 1.0
    experts: Experts | None = None

    def step_s(self, rows: Floats, tokens: Floats) -> Floats:
        """Seconds of a step.

        Args:
            rows: Requests in the step.
            tokens: Tokens of all rows together, of the same or a broadcastable shape.
        """
        padded = self._padded(tokens)
        weights_s = self.weights_s * (self.experts.read_share(tokens) if self.experts else 1.0)
        seconds = np.maximum(weights_s + rows * self.row_s, padded * self.token_s)
        step: Floats = self.host_s + seconds * np.where(
            padded < self.few_tokens, self.few_factor, 1.0
        )
        return step

    def _padded(self, tokens: Floats) -> Floats:
        if not self.sizes:
            return tokens
        sizes = np.array(self.sizes, dtype=np.float64)
        index = np.searchsorted(sizes, tokens)
        return np.where(index < len(sizes), sizes[np.minimum(index, len(sizes) - 1)], tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Time of a proposal.

    Attributes:
        step_s: Seconds of one step of the drafter over few rows.
        row_s: Seconds of one row in a step over many.
        parallel: All K drafts come from one step.
        host_s: Seconds per proposal, whatever K.
    """

    step_s: float = 0.0
    row_s: float = 0.0
    parallel: bool = False
    host_s: float = 0.0

    def proposal_s(self, rows: Floats, num_drafts: Floats) -> Floats:
        """Seconds of one proposal of `num_drafts` tokens for each of `rows` requests."""
        if self.parallel:
            return self.host_s + np.maximum(self.step_s, rows * num_drafts * self.row_s)
        return self.host_s + num_drafts * np.maximum(self.step_s, rows * self.row_s)

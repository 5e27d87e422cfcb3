"""A bench that measures arms of a simulated world, with the attributes of the real one.

What a block looks like is decided here alone: it is the real one without what needs an engine.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from engine.errors import EngineError
from policies.types import Block, SpeculativeConfig
from tests.simulator.noise import Noise, NoiseSource
from tests.simulator.world import World

_SECONDS_PER_WINDOW_S = 1.3  # device time of a block, set-up included, over its timed windows
_WINDOWS = 4  # of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTally:
    """What one arm did in its windows.

    Attributes:
        num_tokens: Tokens emitted.
        num_rounds: Not simulated; 0, as the three below: no decision rests on them.
        seconds: Time that they took.
        num_drafts: 0.
        num_draft_tokens: 0.
        num_accepted_tokens: 0.
    """

    num_tokens: int
    num_rounds: int = 0
    seconds: float
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedBlock:
    """One measured block, like `autotune.tuning.paired.PairedBlock`.

    Its noise is that of rounds' times; what a few rounds happen to accept is not simulated, so
    nothing else is expected than what is emitted.
    """

    baseline: SimulatedTally
    candidate: SimulatedTally
    disturbed: bool
    expected_tokens: None = None

    def block(self) -> Block:
        """The part that decisions rest on."""
        return Block(
            baseline_tokens=self.baseline.num_tokens,
            baseline_s=self.baseline.seconds,
            candidate_tokens=self.candidate.num_tokens,
            candidate_s=self.candidate.seconds,
        )


class SimulatedBench:
    """Measures arms and counts what that costs.

    Attributes:
        num_blocks: Blocks begun, disturbed ones and failures included.
        blocks_by_stage: The same by stage.
        device_seconds: Simulated device time so far; the world's drift follows it.
        dead: Drafters that failed so far.
    """

    def __init__(self, world: World, noise: Noise, seed: int, window_s: float = 0.5) -> None:
        """Measure `world` on a machine with `noise`.

        Args:
            world: What is true.
            noise: What hides it.
            seed: Of the noise; the same calls in the same order give the same blocks.
            window_s: Seconds of one window; a block has four.
        """
        self._world = world
        self._source = NoiseSource(noise, np.random.default_rng(seed))
        self._window_s = window_s
        self._blocks_of: Counter[str] = Counter()
        self.num_blocks = 0
        self.blocks_by_stage: Counter[str] = Counter()
        self.device_seconds = 0.0
        self.dead: set[str] = set()

    def measure(
        self, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> SimulatedBlock:
        """Measure one block of an arm against unloaded off.

        Args:
            config: The arm.
            batch_size: One of the world's.
            stage: Only counted. Unlike real blocks, two arms share no draws, so comparing them
                is a little noisier here.
            index: Ignored.

        Raises:
            EngineError: The drafter died.
        """
        block_s = _WINDOWS * self._window_s
        self.num_blocks += 1
        self.blocks_by_stage[stage] += 1
        at_s = self.device_seconds
        self.device_seconds += block_s * _SECONDS_PER_WINDOW_S
        self._blocks_of[config.drafter] += 1
        lasts = self._world.fails_after.get(config.drafter, math.inf)
        if self._blocks_of[config.drafter] > lasts:
            self.dead.add(config.drafter)
            raise EngineError(f"{config.drafter}: logits are not finite")
        noise = self._source.next_block(batch_size, block_s, is_idle=not config.speculates)
        log_off = math.log(self._world.off_tokens_per_s[batch_size])
        log_gain = self._world.measurable(config, batch_size, at_s)
        return SimulatedBlock(
            self._tally(log_off + noise.log_baseline),
            self._tally(log_off + log_gain + noise.log_candidate),
            noise.flagged,
        )

    def _tally(self, log_rate: float) -> SimulatedTally:
        """Two windows of an arm; the time makes up for tokens being whole."""
        rate = math.exp(log_rate)
        tokens = max(1, round(rate * _WINDOWS / 2 * self._window_s))
        return SimulatedTally(num_tokens=tokens, seconds=tokens / rate)

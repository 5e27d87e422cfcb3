"""Paired end-to-end measurement: an arm against unloaded off, in randomised ABBA blocks.

A window runs decode rounds of one arm at a constant batch size. It starts from states in the
middle of recorded answers, drawn as often as a round of that arm would start there; a fair mix of
beginnings, middles and ends, which a few seconds from the start of a request would not be. (Drawing
positions evenly instead would flatter drafters that accept in bursts: most tokens lie inside a
burst, but few rounds start there.) A request that ends is replaced by a new one from its start.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from time import perf_counter

from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.paired_block import PairedBlock, Tally
from autotune.tuning.prior import Prior
from autotune.tuning.quiet import LoadWatch
from autotune.tuning.seeds import derive_seed
from autotune.tuning.session import Session
from engine.record import Trajectory
from policies.types import OFF, SpeculativeConfig

_ROWS_PER_WINDOW = 32  # distinct starting states in a window, where the batch is smaller
# Without drafts both arms emit a token a row and round, so that the drift of the clock is most of
# the noise: an idle drafter is compared in many short turns.
_IDLE_SLICES = 5
_MAX_OTHERS_SHARE = 0.2  # of the processors, taken by others, beyond which a block is disturbed


class _Starts:
    """Start positions of an arm's rounds over all recorded answers."""

    def __init__(self, trajectories: Seq[Trajectory], visits: Seq[Seq[float]]) -> None:
        self._trajectories = trajectories
        self._where = [
            (row, position)
            for row, weights in enumerate(visits)
            for position, weight in enumerate(weights, start=1)
            if weight > 0
        ]
        flat = (weight for weights in visits for weight in weights if weight > 0)
        self._cumulative = list(accumulate(flat))

    def draw(self, count: int, generator: random.Random) -> list[tuple[Trajectory, int]]:
        """Systematic sample: evenly spread over the answers, so that blocks resemble each other."""
        total = self._cumulative[-1]
        first = generator.random()
        points = [(first + i) * total / count for i in range(count)]
        picked = []
        for point in points:
            index = min(bisect_right(self._cumulative, point), len(self._where) - 1)
            row, position = self._where[index]
            picked.append((self._trajectories[row], position))
        generator.shuffle(picked)
        return picked


class PairedBench:
    """Measures arms on a session's engine."""

    def __init__(
        self, session: Session, acceptance: AcceptanceProfile, prior: Prior | None = None
    ) -> None:
        """Prepare; nothing is measured yet.

        Args:
            session: Its engine must be idle.
            acceptance: Says where rounds start.
            prior: Says what the rounds of a block emit on average; None counts what they emit.
        """
        self._session = session
        self._acceptance = acceptance
        self._prior = prior
        self._usable = [t for t in session.trajectories if t.num_decoded > 0]
        self._warm: set[tuple[SpeculativeConfig, int]] = set()
        self._starts: dict[SpeculativeConfig, _Starts] = {}

    def measure(
        self, config: SpeculativeConfig, batch_size: int, stage: str, index: int
    ) -> PairedBlock:
        """Measure one block.

        Args:
            config: The arm.
            batch_size: Requests in flight, constant in every window.
            stage: With `index`, the seed of the block: two stages share no block.
            index: Number of the block; equal numbers of one stage give all arms the same draws.

        Raises:
            EngineError: The arm failed, for example on logits that are not finite.
        """
        for arm in (OFF, config):
            if (arm, batch_size) not in self._warm:
                self._window(arm, batch_size, random.Random(0), Tally(), 0.0)
                self._warm.add((arm, batch_size))
        seed = derive_seed(self._session.settings.seed, stage, batch_size, index)
        order = random.Random(seed).choice(((OFF, config, config, OFF), (config, OFF, OFF, config)))
        num_slices = 1 if config.speculates else _IDLE_SLICES
        tallies = {OFF: Tally(), config: Tally()}
        seen = {OFF: 0, config: 0}
        watch = LoadWatch()
        for arm in order * num_slices:
            generator = random.Random(derive_seed(seed, seen[arm]))
            seen[arm] += 1
            window_s = self._session.settings.window_s / num_slices
            self._window(arm, batch_size, generator, tallies[arm], window_s)
        disturbed = watch.others_share() > _MAX_OTHERS_SHARE
        expected = (
            self._prior.expected_tokens(config, batch_size, tallies[config])
            if self._prior
            else None
        )
        return PairedBlock(tallies[OFF], tallies[config], disturbed, expected)

    def _window(
        self,
        arm: SpeculativeConfig,
        batch_size: int,
        generator: random.Random,
        tally: Tally,
        window_s: float,
    ) -> None:
        """Run one arm for `window_s` seconds of decode rounds, split over several sets of rows."""
        num_segments = max(1, _ROWS_PER_WINDOW // batch_size)
        states = self._starts_of(arm).draw(batch_size * num_segments, generator)
        engine = self._session.engine
        engine.load(None if arm.is_off else self._session.drafters[arm.drafter])
        try:
            for segment in range(num_segments):
                rows = states[segment * batch_size : (segment + 1) * batch_size]
                self._segment(arm, rows, generator, tally, window_s / num_segments)
        finally:  # An arm that failed must not stand in the way of the next one.
            for slot in list(engine.sequences):
                engine.release(slot)

    def _segment(
        self,
        arm: SpeculativeConfig,
        rows: list[tuple[Trajectory, int]],
        generator: random.Random,
        tally: Tally,
        segment_s: float,
    ) -> None:
        """Run rounds from one set of rows, then free the slots."""
        engine = self._session.engine
        for slot, (trajectory, position) in enumerate(rows):
            self._resume(arm, slot, trajectory, position, generator)
        spent = 0.0
        while True:
            start = perf_counter()
            outcomes = engine.round(arm.num_speculative_tokens, arm.draft_temperature)
            seconds = perf_counter() - start
            tally.add(outcomes, seconds)
            spent += seconds
            if spent >= segment_s:
                break
            for slot, sequence in list(engine.sequences.items()):
                if sequence.finish_reason is not None:
                    engine.release(slot)
                    self._resume(arm, slot, generator.choice(self._usable), 1, generator)
        for slot in range(len(rows)):
            engine.release(slot)

    def _resume(
        self,
        arm: SpeculativeConfig,
        slot: int,
        trajectory: Trajectory,
        position: int,
        generator: random.Random,
    ) -> None:
        """Put a row into a slot, outside the timed part."""
        request = trajectory.request
        # Another seed than the recorded one: from here on the answer is a fresh draw.
        params = replace(request.params, seed=generator.getrandbits(62))
        sequence = trajectory.resume_at(position, replace(request, params=params))
        drafted = self._acceptance.snapshots.get(arm.drafter, {}).get(request.request_id)
        self._session.engine.resume(slot, sequence, trajectory.snapshot, drafted)

    def _starts_of(self, arm: SpeculativeConfig) -> _Starts:
        if arm not in self._starts:
            trajectories = self._session.trajectories
            visits: list[list[float]]
            if arm.speculates:
                rows = self._acceptance.replay(arm).visits.tolist()
                visits = [row[: t.num_decoded] for row, t in zip(rows, trajectories, strict=True)]
            else:
                visits = [[1.0] * t.num_decoded for t in trajectories]
            self._starts[arm] = _Starts(trajectories, visits)
        return self._starts[arm]

"""The two halves of the prior beside the grid: tokens per round, and the time of a round."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, stdev

from policies.estimate import comparable, log_ratio
from policies.types import SpeculativeConfig
from tests.benchmarks.search_grid import Grid, GridBlock
from tests.benchmarks.search_truth import grid_gains

_TIMED = frozenset({1, 2, 4, 8})  # K whose verify pass or proposal the cost table has timed


@dataclass(frozen=True, slots=True)
class ReplayError:
    """Tokens per round of the engine beside replay, over all batch sizes.

    Attributes:
        arm: The arm.
        error: Log of engine over replay.
        std_error: Of that: from the blocks, and from the choice of requests.
        num_rounds: Rounds of the engine.
    """

    arm: SpeculativeConfig
    error: float
    std_error: float
    num_rounds: int


def replay_errors(grid: Grid) -> list[ReplayError]:
    """Of every arm that drafts."""
    replayed = {one.cell[1]: one for one in grid.predictions}
    blocks: dict[SpeculativeConfig, list[GridBlock]] = defaultdict(list)
    for block in grid.blocks:
        if block.num_speculative_tokens and not block.disturbed:
            blocks[block.cell[1]].append(block)
    found = []
    for arm, some in blocks.items():
        rounds = [block.num_rounds for block in some]
        expected = replayed[arm].tokens_per_round
        off = [block.candidate_tokens - block.num_rounds * expected for block in some]
        spread = stdev(off) * math.sqrt(len(off)) / (sum(rounds) * expected)
        found.append(
            ReplayError(
                arm,
                math.log1p(sum(off) / (sum(rounds) * expected)),
                math.hypot(spread, replayed[arm].request_std_error),
                sum(rounds),
            )
        )
    return found


def latency_errors(grid: Grid) -> list[float]:
    """Relative errors of the predicted time of a round, over K that were not timed.

    The grid's gains take acceptance from replay, as the prediction does, so what is left between
    the two is the time of a round beside a plain step.
    """
    gains = grid_gains(grid)
    return sorted(
        abs(math.expm1(gains[one.cell] - math.log(one.tokens_per_s / one.off_tokens_per_s)))
        for one in grid.predictions
        if one.num_speculative_tokens not in _TIMED and one.cell in gains
    )


def block_sd(grid: Grid, batch_size: int) -> float | None:
    """Standard deviation of a block's log ratio, from cells with several; None without any."""
    squares, freedom = 0.0, 0
    for (size, arm), blocks in grid.by_cell().items():
        if size == batch_size and arm.speculates and len(blocks) > 1:
            values = [log_ratio(block) for block in comparable(blocks)]
            centre = fmean(values)
            squares += math.fsum((value - centre) ** 2 for value in values)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None

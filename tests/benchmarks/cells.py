"""Drafters at batch 1, one cell for every task and temperature: replayed, predicted, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.figures import interval
from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.paired import PairedBench
from autotune.tuning.prior import Prior
from autotune.tuning.session import Session
from engine.latency import CostTable
from policies.estimate import confidence_interval, gain, paired_estimate
from policies.types import Block, PairedEstimate, SpeculativeConfig

CONFIDENCE = 0.95
MAX_K = 8
_MIN_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """The answers of one task at one temperature.

    Attributes:
        task: Task.
        temperature: Of the requests; drafts follow it.
        session: The same engine and drafters, these answers alone.
        acceptance: The drafters on these answers.
    """

    task: str
    temperature: float
    session: Session
    acceptance: AcceptanceProfile


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm beside unloaded off.

    Attributes:
        config: The arm.
        estimate: Its gain.
        num_disturbed: Blocks that do not count.
    """

    config: SpeculativeConfig
    estimate: PairedEstimate
    num_disturbed: int

    @property
    def is_shown(self) -> bool:
        """The interval of the gain over off lies above zero."""
        return confidence_interval(self.estimate, CONFIDENCE).low > 0

    def to_json(self) -> dict[str, object]:
        """Figures of this arm."""
        shown = interval(self.estimate, CONFIDENCE)
        return {
            "drafter": self.config.drafter,
            "num_speculative_tokens": self.config.num_speculative_tokens,
            "tokens_per_s": self.estimate.candidate_tokens_per_s,
            "off_tokens_per_s": self.estimate.baseline_tokens_per_s,
            "gain": gain(self.estimate.log_gain),
            "gain_low": shown.low,
            "gain_high": shown.high,
            "num_blocks": self.estimate.num_blocks,
            "num_disturbed": self.num_disturbed,
        }


def cells(session: Session, acceptance: AcceptanceProfile) -> Iterator[Cell]:
    """Split the answers by task and temperature, in order."""
    groups: dict[tuple[str, float], list[int]] = {}
    for index, trajectory in enumerate(session.trajectories):
        request = trajectory.request
        groups.setdefault((request.task, request.params.temperature), []).append(index)
    for (task, temperature), rows in sorted(groups.items()):
        profiles = {key: [found[row] for row in rows] for key, found in acceptance.profiles.items()}
        yield Cell(
            task,
            temperature,
            replace(session, trajectories=tuple(session.trajectories[row] for row in rows)),
            AcceptanceProfile(profiles, acceptance.snapshots),
        )


def predictions(cell: Cell, costs: CostTable) -> list[dict[str, object]]:
    """Tokens per round, acceptance by position and predicted rate of every drafter and K."""
    prior = Prior(cell.acceptance, costs)
    rows: list[dict[str, object]] = []
    for config in cell.acceptance.arms(MAX_K):
        if not config.speculates:
            continue
        counts = cell.acceptance.replay(config)
        accepted = counts.num_accepted_per_pos.sum(dim=0) / counts.num_rounds.sum()
        rows.append(
            {
                "drafter": config.drafter,
                "num_speculative_tokens": config.num_speculative_tokens,
                "tokens_per_round": counts.tokens_per_round,
                "tokens_per_round_std_error": counts.tokens_per_round_std_error,
                "accepted_per_pos": [round(share, 4) for share in accepted.tolist()],
                "predicted_tokens_per_s": prior.tokens_per_s(config, 1),
                "predicted_off_tokens_per_s": prior.off_tokens_per_s(1),
            }
        )
    return rows


def best_predicted(cell: Cell, costs: CostTable, drafter: str) -> SpeculativeConfig | None:
    """The K of a drafter with the highest predicted rate; None where it was not profiled."""
    prior = Prior(cell.acceptance, costs)
    arms = [
        config
        for config in cell.acceptance.arms(MAX_K)
        if config.drafter == drafter and config.speculates
    ]
    return max(arms, key=lambda config: prior.tokens_per_s(config, 1), default=None)


def measure(
    cell: Cell,
    configs: Sequence[SpeculativeConfig],
    num_blocks: int,
    on_block: Callable[[], None],
) -> Mapping[SpeculativeConfig, Measured]:
    """Measure arms in interleaved blocks; one with too few undisturbed blocks is left out."""
    bench = PairedBench(cell.session, cell.acceptance)
    taken: dict[SpeculativeConfig, list[bool]] = {config: [] for config in configs}
    blocks: dict[SpeculativeConfig, list[Block]] = {config: [] for config in configs}
    for index in range(num_blocks):
        for config in configs:
            found = bench.measure(config, 1, "bench-drafters", index)
            taken[config].append(found.disturbed)
            if not found.disturbed:
                blocks[config].append(found.block())
            on_block()
    return {
        config: Measured(config, paired_estimate(rows), sum(taken[config]))
        for config, rows in blocks.items()
        if len(rows) >= _MIN_BLOCKS
    }

"""What a search gave away: its table beside the best of the grid, measured again side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.document import PublishedConfig
from autotune.tuning.belief import Cell
from autotune.tuning.explore import Kind
from autotune.tuning.paired_block import Bench
from policies.estimate import comparable, log_ratio, paired_estimate
from policies.student_t import upper_quantile
from policies.types import OFF, OFF_DRAFTER, Block, PairedEstimate, SpeculativeConfig
from tests.benchmarks.search_grid import Grid

TOP = 5  # arms of the grid that are measured again at each batch size
_TOP_KINDS = 3  # envelopes whose best arms are measured again
_HARM = math.log1p(-0.01)

Gains = Mapping[Cell, float]


@dataclass(frozen=True, slots=True)
class Table:
    """What was decided.

    Attributes:
        kind: What is loaded; None is off.
        arms: By batch size.
    """

    kind: Kind | None
    arms: Mapping[int, SpeculativeConfig]

    @classmethod
    def of(cls, document: PublishedConfig) -> Table:
        """From what was published."""
        envelope = document.envelope
        arms = {}
        for cell in document.evidence:
            drafts = cell.num_speculative_tokens > 0
            arms[cell.batch_size] = SpeculativeConfig(
                drafter=cell.drafter,
                num_speculative_tokens=cell.num_speculative_tokens,
                draft_temperature=cell.draft_temperature if drafts else None,
            )
        is_off = envelope.drafter == OFF_DRAFTER
        return cls(None if is_off else (envelope.drafter, envelope.draft_temperature), arms)


def grid_gains(grid: Grid) -> dict[Cell, float]:
    """Mean log gain over unloaded off of every cell of the grid."""
    return {
        cell: fmean(map(log_ratio, comparable(blocks))) for cell, blocks in grid.by_cell().items()
    }


def kind_of(arm: SpeculativeConfig) -> Kind | None:
    """What has to be loaded for it."""
    return None if arm.is_off else (arm.drafter, arm.draft_temperature)


def best_table(gains: Gains, kind: Kind) -> dict[int, SpeculativeConfig]:
    """The best arm of an envelope at each batch size, the idle drafter among them."""
    best: dict[int, SpeculativeConfig] = {}
    for size in {size for size, _ in gains}:
        arms = [
            arm
            for at, arm in gains
            if at == size
            and arm.drafter == kind[0]
            and (not arm.speculates or arm.draft_temperature == kind[1])
        ]
        if arms:
            best[size] = max(arms, key=lambda arm: gains[size, arm])
    return best


def total(gains: Gains, table: Mapping[int, SpeculativeConfig]) -> float:
    """Mean log gain of a table over the batch sizes, which weigh the same."""
    return fmean(gain_of(gains, (size, arm)) for size, arm in table.items())


def gain_of(gains: Gains, cell: Cell) -> float:
    """Log gain of a cell; off has none."""
    return 0.0 if cell[1].is_off else gains[cell]


def harms(gains: Gains, table: Mapping[int, SpeculativeConfig]) -> bool:
    """Some batch size loses more than 1 % against off."""
    return any(gain_of(gains, cell) < _HARM for cell in table.items())


def kinds(gains: Gains) -> list[Kind]:
    """Envelopes of the grid, the best first; those that harm a batch size come last."""
    found = {(arm.drafter, arm.draft_temperature) for _, arm in gains if arm.speculates}

    def rank(kind: Kind) -> tuple[bool, float]:
        table = best_table(gains, kind)
        return harms(gains, table), -total(gains, table)

    return sorted(found, key=rank)


def contenders(gains: Gains, decided: Table) -> dict[int, list[SpeculativeConfig]]:
    """What is measured again at each batch size.

    The grid's best arms of all, those of the chosen envelope, the best of each of the best
    envelopes, and what was decided.
    """
    sizes = sorted({size for size, _ in gains})
    tables = [best_table(gains, kind) for kind in kinds(gains)[:_TOP_KINDS]]
    found: dict[int, list[SpeculativeConfig]] = {}
    for size in sizes:
        ranked = sorted((arm for at, arm in gains if at == size), key=lambda arm: -gains[size, arm])
        own = [arm for arm in ranked if decided.kind and arm.drafter == decided.kind[0]]
        within = [arm for arm in own if arm.speculates and kind_of(arm) == decided.kind]
        idle = [arm for arm in own if not arm.speculates]
        wanted = [
            *ranked[:TOP],
            *within[:TOP],
            *idle,
            *(table[size] for table in tables),
            decided.arms[size],
        ]
        found[size] = [arm for arm in dict.fromkeys(wanted) if not arm.is_off]
    return found


def measure_again(
    bench: Bench,
    arms: Mapping[int, Sequence[SpeculativeConfig]],
    num_blocks: int,
    on_block: Callable[[float, str], None],
) -> dict[Cell, list[Block]]:
    """Blocks of all arms in turn; a turn with a disturbed block does not count.

    Args:
        bench: Measures.
        arms: By batch size.
        num_blocks: Turns that count.
        on_block: Told the share that is done, and what is measured.
    """
    blocks: dict[Cell, list[Block]] = {}
    done, all_turns = 0, len(arms) * num_blocks
    for size, some in arms.items():
        kept, turn = 0, 0
        while kept < num_blocks and turn < 2 * num_blocks:
            on_block(done / all_turns, f"batch {size}, turn {turn + 1}")
            found = {arm: bench.measure(arm, size, "truth", turn) for arm in some}
            turn += 1
            if any(block.disturbed for block in found.values()):
                continue
            kept, done = kept + 1, done + 1
            for arm, block in found.items():
                blocks.setdefault((size, arm), []).append(block.block())
        if kept < 2:
            raise SystemExit(f"batch {size}: other processes disturbed nearly every block")
    return blocks


@dataclass(frozen=True, slots=True)
class Loss:
    """Log rate that one arm or table lies below another.

    Attributes:
        log_loss: The difference; never below 0.
        low: Lower 95 % bound.
        best: What it is compared with.
    """

    log_loss: float
    low: float
    best: str

    @property
    def share(self) -> float:
        """As a fraction of the best rate."""
        return -math.expm1(-self.log_loss)

    @property
    def low_share(self) -> float:
        """The bound as a fraction; below 0 where nothing is shown."""
        return -math.expm1(-self.low)


class Truth:
    """Arms measured side by side."""

    def __init__(self, blocks: Mapping[Cell, Sequence[Block]]) -> None:
        """Keep the blocks; those of one batch size share their turns."""
        self._values = {
            cell: [log_ratio(block) for block in comparable(found)]
            for cell, found in blocks.items()
        }
        self.estimates: dict[Cell, PairedEstimate] = {
            cell: paired_estimate(found) for cell, found in blocks.items()
        }
        self.gains: dict[Cell, float] = {
            cell: fmean(values) for cell, values in self._values.items()
        }

    def within(self, decided: Table) -> dict[int, Loss]:
        """By batch size: the decided arm beside the best of what is loaded."""
        best = best_table(self.gains, decided.kind) if decided.kind else {}
        return {
            size: self._loss({size: arm}, {size: best.get(size, OFF)})
            for size, arm in decided.arms.items()
        }

    def across(self, decided: Table) -> Loss:
        """The decided table beside the best harmless one of those that were measured again."""
        off = dict.fromkeys(decided.arms, OFF)
        tables = [best_table(self.gains, kind) for kind in kinds(self.gains)]
        harmless = [
            table for table in tables if table.keys() == off.keys() and not harms(self.gains, table)
        ]
        best = max([off, *harmless], key=lambda table: total(self.gains, table))
        return self._loss(decided.arms, best)

    def _loss(
        self, chosen: Mapping[int, SpeculativeConfig], best: Mapping[int, SpeculativeConfig]
    ) -> Loss:
        """Mean difference over batch sizes; turns are paired, batch sizes independent."""
        means, variances, freedom = [], [], 1
        for size, arm in chosen.items():
            if arm == best[size]:
                means.append(0.0)
                continue
            theirs, ours = self._of((size, best[size])), self._of((size, arm))
            num = max(len(theirs), len(ours))
            differences = [
                b - a for b, a in zip(theirs or [0.0] * num, ours or [0.0] * num, strict=True)
            ]
            means.append(fmean(differences))
            variances.append(stdev(differences) ** 2 / num)
            freedom = max(freedom, num - 1)
        mean, error = fmean(means), math.sqrt(math.fsum(variances)) / len(means)
        low = mean - error * upper_quantile(0.05, freedom) if variances else 0.0
        return Loss(max(mean, 0.0), low, next(iter(best.values())).label())

    def _of(self, cell: Cell) -> Sequence[float]:
        """Log ratios turn by turn; none for off, which is the baseline of all."""
        return self._values.get(cell, ())

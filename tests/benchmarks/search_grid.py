"""The exhaustive grid that searches are judged by: blocks of every arm, kept cell by cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.tuning.belief import Cell
from autotune.tuning.paired_block import PairedBlock
from policies.types import Block, SpeculativeConfig

PATH = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "search_grid.json"
"""Where the grid is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCell:
    """Something about one cell.

    Attributes:
        batch_size: Rows.
        drafter: Its name.
        num_speculative_tokens: K; 0 is the loaded, idle drafter.
        draft_temperature: None follows the request.
    """

    batch_size: int
    drafter: str
    num_speculative_tokens: int
    draft_temperature: float | None

    @property
    def cell(self) -> Cell:
        """Batch size and arm."""
        return self.batch_size, SpeculativeConfig(
            drafter=self.drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            draft_temperature=self.draft_temperature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBlock(OfCell):
    """One block of one cell.

    Attributes:
        pass_number: Which pass over all cells it belongs to.
        baseline_tokens: As in the ledger, and so on.
        wall_s: Seconds of the device that the block took, set-up of its windows included.
        disturbed: Others used the processors: the block says nothing.
    """

    pass_number: int
    baseline_tokens: int
    baseline_s: float
    candidate_tokens: int
    candidate_s: float
    expected_tokens: float | None
    num_rounds: int
    wall_s: float
    disturbed: bool

    @classmethod
    def of(cls, pass_number: int, cell: Cell, block: PairedBlock, wall_s: float) -> GridBlock:
        """From a measured block."""
        batch_size, config = cell
        return cls(
            pass_number=pass_number,
            batch_size=batch_size,
            drafter=config.drafter,
            num_speculative_tokens=config.num_speculative_tokens,
            draft_temperature=config.draft_temperature,
            baseline_tokens=block.baseline.num_tokens,
            baseline_s=block.baseline.seconds,
            candidate_tokens=block.candidate.num_tokens,
            candidate_s=block.candidate.seconds,
            expected_tokens=block.expected_tokens,
            num_rounds=block.candidate.num_rounds,
            wall_s=wall_s,
            disturbed=block.disturbed,
        )

    @property
    def num_target_tokens(self) -> int:
        """Tokens that the target emitted for it, both arms together."""
        return self.baseline_tokens + self.candidate_tokens

    def block(self) -> Block:
        """As decisions see it."""
        return Block(
            baseline_tokens=self.baseline_tokens,
            baseline_s=self.baseline_s,
            candidate_tokens=self.candidate_tokens,
            candidate_s=self.candidate_s,
            expected_tokens=self.expected_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(OfCell):
    """What the prior says about one cell before any block.

    Attributes:
        tokens_per_s: Predicted rate.
        off_tokens_per_s: Predicted rate without speculation.
        request_std_error: Of the log gain, from the choice of requests.
        tokens_per_round: By replay.
    """

    tokens_per_s: float
    off_tokens_per_s: float
    request_std_error: float
    tokens_per_round: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Everything measured so far.

    Attributes:
        conditions: Date, commit, device, settings, and what recording and replay took.
        predictions: Of every arm that drafts.
        blocks: In the order of measuring.
    """

    conditions: Mapping[str, object]
    predictions: Sequence[Prediction]
    blocks: Sequence[GridBlock]

    def by_cell(self) -> dict[Cell, list[Block]]:
        """The undisturbed blocks of every cell."""
        found: dict[Cell, list[Block]] = {}
        for one in self.blocks:
            if not one.disturbed:
                found.setdefault(one.cell, []).append(one.block())
        return found

    @property
    def num_target_tokens(self) -> int:
        """Tokens that the target emitted for all cells."""
        return sum(one.num_target_tokens for one in self.blocks)

    @property
    def device_seconds(self) -> float:
        """Seconds of the device that all cells took."""
        return sum(one.wall_s for one in self.blocks)

    def to_json(self) -> str:
        """One line per block, so that another pass adds lines."""
        fields = list(GridBlock.__dataclass_fields__)
        rows = [list(asdict(one).values()) for one in self.blocks]
        parts = {
            "conditions": json.dumps(self.conditions),
            "predictions": _lines(asdict(one) for one in self.predictions),
            "fields": json.dumps(fields),
            "blocks": _lines(rows),
        }
        return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Grid:
        """Read what `to_json` wrote."""
        found = json.loads(text)
        return cls(
            conditions=found["conditions"],
            predictions=[Prediction(**one) for one in found["predictions"]],
            blocks=[
                GridBlock(**dict(zip(found["fields"], row, strict=True))) for row in found["blocks"]
            ],
        )


def _lines(values: Iterable[object]) -> str:
    def rounded(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.7g}")
        if isinstance(value, dict):
            return {key: rounded(one) for key, one in value.items()}
        return [rounded(one) for one in value] if isinstance(value, list) else value

    rows: Iterator[str] = (json.dumps(rounded(value)) for value in values)
    return "[\n" + ",\n".join(rows) + "\n]"

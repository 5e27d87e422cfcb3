"""What a round costs, apart from what it accepts.

The step time of a dense model does not depend on which tokens it sees, only on how many rows and
how many tokens per row. A few cells are timed, the rest is interpolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from torch import Tensor

from engine.drafters.base import Drafter, DrafterSnapshot, Proposal
from engine.engine import Engine
from engine.record import Trajectory
from engine.request import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCell:
    """One timed step.

    Attributes:
        kind: `verify` (target forward, acceptance and bookkeeping) or `draft` (a proposal).
        drafter: The drafter of a `draft` cell, else None.
        batch_size: Rows.
        num_speculative_tokens: K of every row.
        num_tokens: Tokens of all rows in the verify pass, or drafted in the proposal.
        seconds: Times in the order they were taken, warm-up excluded.
    """

    kind: str
    drafter: str | None
    batch_size: int
    num_speculative_tokens: int
    num_tokens: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median time of the step."""
        return median(self.seconds)


class CostTable:
    """Interpolates timed cells: seconds over tokens for a verify pass, over K for a proposal."""

    def __init__(self, cells: list[CostCell]) -> None:
        """Index the cells by batch size and drafter."""
        self._verify: dict[int, list[tuple[float, float]]] = {}
        self._draft: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for cell in sorted(cells, key=lambda c: (c.num_tokens, c.num_speculative_tokens)):
            if cell.kind == "verify":
                points = self._verify.setdefault(cell.batch_size, [])
                points.append((cell.num_tokens, cell.median_s))
            else:
                key = (cell.drafter or "", cell.batch_size)
                points = self._draft.setdefault(key, [])
                points.append((cell.num_speculative_tokens, cell.median_s))

    @property
    def batch_sizes(self) -> frozenset[int]:
        """The batch sizes that were timed."""
        return frozenset(self._verify)

    def verify_s(self, batch_size: int, tokens_per_row: float) -> float:
        """Seconds of a verify pass; `tokens_per_row` counts the newest token and the drafts.

        Raises:
            KeyError: The batch size was not timed.
        """
        return _interpolate(self._verify[batch_size], batch_size * tokens_per_row)

    def draft_s(self, drafter: str, batch_size: int, num_speculative_tokens: int) -> float:
        """Seconds of one proposal.

        Raises:
            KeyError: The drafter was not timed at this batch size.
        """
        return _interpolate(self._draft[drafter, batch_size], num_speculative_tokens)


class _FixedDrafter:
    """Proposes the same number of tokens for every row, to time verification alone."""

    name = "fixed"
    feature_layers: tuple[int, ...] = ()
    num_bytes = 0

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Nothing to keep."""

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Repeat the newest token."""
        return Proposal(
            [[seq.tokens[-1]] * limit for seq, limit in zip(sequences, limits, strict=True)], None
        )

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Nothing to keep."""

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Nothing to keep."""
        return None

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Nothing to keep."""


def time_verify(
    engine: Engine,
    states: list[tuple[Trajectory, int]],
    num_speculative_tokens: int,
    *,
    num_samples: int,
) -> CostCell:
    """Time verify passes over one batch of running states.

    Args:
        engine: Its running requests must all be released.
        states: A trajectory and a number of output tokens per row.
        num_speculative_tokens: K of every row; 0 times a plain step.
        num_samples: Timed passes after one warm-up.
    """
    engine.load(_FixedDrafter())
    num_tokens = 0

    def verify() -> None:
        nonlocal num_tokens
        num_tokens = sum(1 + row.num_drafted for row in engine.round(num_speculative_tokens))

    seconds = _time(engine, states, {}, num_speculative_tokens, verify, num_samples)
    return CostCell(
        kind="verify",
        drafter=None,
        batch_size=len(states),
        num_speculative_tokens=num_speculative_tokens,
        num_tokens=num_tokens,
        seconds=seconds,
    )


def time_draft(
    engine: Engine,
    drafter: Drafter,
    states: list[tuple[Trajectory, int]],
    snapshots: Mapping[str, DrafterSnapshot],
    num_speculative_tokens: int,
    *,
    num_samples: int,
) -> CostCell:
    """Time proposals of a drafter over one batch of running states.

    Args:
        engine: Its running requests must all be released.
        drafter: What to time.
        states: As in `time_verify`.
        snapshots: The drafter's own snapshot per request id, where it has one.
        num_speculative_tokens: K of every row, at least 1.
        num_samples: Timed proposals after one warm-up.
    """
    engine.load(drafter)
    num_tokens = 0

    def propose() -> None:
        nonlocal num_tokens
        slots = sorted(engine.sequences)
        sequences = [engine.sequences[slot] for slot in slots]
        limits = [
            min(num_speculative_tokens, sequence.max_drafts(engine.max_len))
            for sequence in sequences
        ]
        drafts = drafter.propose(slots, sequences, limits, None).tokens
        num_tokens = sum(len(draft) for draft in drafts)

    seconds = _time(engine, states, snapshots, num_speculative_tokens, propose, num_samples)
    return CostCell(
        kind="draft",
        drafter=drafter.name,
        batch_size=len(states),
        num_speculative_tokens=num_speculative_tokens,
        num_tokens=num_tokens,
        seconds=seconds,
    )


def _time(
    engine: Engine,
    states: list[tuple[Trajectory, int]],
    snapshots: Mapping[str, DrafterSnapshot],
    num_speculative_tokens: int,
    step: Callable[[], None],
    num_samples: int,
) -> tuple[float, ...]:
    """Seconds of a step, always from the same states; the first one warms up."""
    seconds = []
    try:
        for _ in range(1 + num_samples):
            _release_all(engine)
            _resume_all(engine, states, snapshots, num_speculative_tokens)
            start = perf_counter()
            step()
            seconds.append(perf_counter() - start)
    finally:
        _release_all(engine)
    return tuple(seconds[1:])


def _resume_all(
    engine: Engine,
    states: list[tuple[Trajectory, int]],
    snapshots: Mapping[str, DrafterSnapshot],
    num_speculative_tokens: int,
) -> None:
    """Fill the slots, in contexts that leave room for all drafts: only their length matters."""
    longest = max(2, engine.max_len - num_speculative_tokens)
    for slot, (trajectory, position) in enumerate(states):
        request = trajectory.request
        tokens = trajectory.resume_at(position).tokens[:longest]
        params = replace(request.params, max_tokens=engine.max_len)
        shortened = replace(request, prompt_tokens=tuple(tokens[:1]), params=params)
        drafted = snapshots.get(request.request_id)
        engine.resume(slot, Sequence(shortened, tokens), trajectory.snapshot, drafted)


def _release_all(engine: Engine) -> None:
    for slot in list(engine.sequences):
        engine.release(slot)


def _interpolate(points: list[tuple[float, float]], x: float) -> float:
    """Piecewise linear through the points.

    Beyond them the outer segment goes on, but no step gets cheaper there: a noisy cell would
    otherwise lead to times below zero.
    """
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect_left([point[0] for point in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    return y1 + max(slope, 0.0) * (x - x1) if x > x1 else y0 + slope * (x - x0)

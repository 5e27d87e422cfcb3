"""Times decode rounds of any cell, always from the same states, the drafter's share apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from torch import Tensor

from engine.drafters.base import Drafter, DrafterSnapshot, Proposal
from engine.drafters.factory import DrafterSpec, build_drafter
from engine.engine import Engine
from engine.kv_cache import KvSnapshot
from engine.model import Transformer
from engine.request import Request
from engine.request import Sequence as Running
from engine.sampling import SamplingParams
from tests.benchmarks.scaling_cells import CONTEXT, RoundCell
from tests.support.scripted import StatelessDrafter

_PERIOD = 64  # tokens after which the text repeats, so that n-gram always finds K drafts


@dataclass(frozen=True, slots=True)
class RoundTime:
    """One timed round.

    Attributes:
        total_s: Seconds of the whole round.
        draft_s: Seconds of it in the drafter: its proposal, and what it learns afterwards.
    """

    total_s: float
    draft_s: float

    @property
    def verify_s(self) -> float:
        """Seconds of everything but the drafter."""
        return self.total_s - self.draft_s


class RoundBench:
    """A target cut at several depths, its drafters, and rows to decode.

    All rows hold the same text: the time of a round depends on how many tokens there are, not on
    which. A round starts from a state that is put back without touching the target's keys and
    values, so it finds the processor's caches as the round before left them.
    """

    def __init__(
        self,
        target: Transformer,
        target_folder: Path,
        specs: Sequence[DrafterSpec],
        cells: Sequence[RoundCell],
    ) -> None:
        """Build an engine per depth and context, fill their slots, and prepare the drafters.

        Args:
            target: The whole model.
            target_folder: Its checkpoint.
            specs: The drafters that cells name; they draft for the whole target, at `CONTEXT`.
            cells: What will be timed.

        Raises:
            EngineError: A drafter does not fit the target.
        """
        longest = max(cell.context_len for cell in cells)
        self._text = _repeating_text(longest + 1, target.config.vocab_size)
        self._engines: dict[tuple[int, int], Engine] = {}
        for depth in sorted({cell.num_layers for cell in cells}):
            cut = target if depth == target.config.num_layers else target.first_layers(depth)
            self._add_engines(cut, [cell for cell in cells if cell.num_layers == depth])
        self._drafters: dict[str | None, tuple[_Stopwatch, DrafterSnapshot | None]] = {
            None: (_Stopwatch(_KnownDrafts()), None)
        }
        for spec in specs:
            engine = self._engines[target.config.num_layers, CONTEXT]
            drafter = _Stopwatch(build_drafter(spec, engine, target_folder))
            self._drafters[spec.name] = drafter, self._snapshot(engine, drafter)

    def time(self, cell: RoundCell, num_samples: int) -> list[RoundTime]:
        """Seconds of rounds in the order they were taken; one more before them warms up.

        Raises:
            RuntimeError: A row did not get its K drafts, so another round was timed.
        """
        engine = self._engines[cell.num_layers, cell.context_len]
        drafter, snapshot = self._drafters[cell.drafter]
        engine.load(drafter)
        k = cell.num_speculative_tokens
        times = []
        try:
            for _ in range(1 + num_samples):
                self._place(engine, cell, drafter, snapshot)
                drafter.seconds = 0.0
                start = perf_counter()
                outcomes = engine.round(k)
                times.append(RoundTime(perf_counter() - start, drafter.seconds))
                if any(outcome.num_drafted != k for outcome in outcomes):
                    raise RuntimeError(f"{cell}: a row has fewer than {k} drafts")
        finally:
            for slot in list(engine.sequences):
                engine.release(slot)
            engine.load(None)
        return times[1:]

    def _place(
        self,
        engine: Engine,
        cell: RoundCell,
        drafter: Drafter,
        snapshot: DrafterSnapshot | None,
    ) -> None:
        """Put every row at the cell's context; its keys and values are there already."""
        tokens = self._text[: cell.context_len + 1]
        request = _request(tokens, engine.max_len, cell.temperature)
        for slot in range(cell.batch_size):
            sequence = Running(request, list(tokens))
            engine.cache.lengths[slot] = cell.context_len
            drafter.restore(slot, sequence, snapshot)
            engine.sequences[slot] = sequence

    def _add_engines(self, target: Transformer, cells: Sequence[RoundCell]) -> None:
        """An engine per context, its slots filled; the longest context is the one computed."""
        snapshot: KvSnapshot | None = None
        for length in sorted({cell.context_len for cell in cells}, reverse=True):
            own = [cell for cell in cells if cell.context_len == length]
            engine = Engine(
                target,
                eos_token_ids=(),
                max_batch_size=max(cell.batch_size for cell in own),
                max_len=length + max(cell.tokens_per_row for cell in own) + 1,
            )
            if snapshot is None:
                engine.admit(0, _request(self._text[:length], engine.max_len))
                snapshot = engine.cache.snapshot(0)
                engine.release(0)
            for slot in range(engine.cache.num_slots):
                engine.cache.restore(slot, snapshot, length)
            self._engines[target.config.num_layers, length] = engine

    def _snapshot(self, engine: Engine, drafter: Drafter) -> DrafterSnapshot | None:
        """A drafter's state at the context of its cells."""
        engine.load(drafter)
        engine.admit(0, _request(self._text[:CONTEXT], engine.max_len))
        snapshot = drafter.snapshot(0)
        engine.release(0)
        engine.load(None)
        return snapshot


class _KnownDrafts(StatelessDrafter):
    """Repeats the newest token, at no cost, to time verification alone."""

    name = "known"

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """One token for every place."""
        pairs = zip(sequences, limits, strict=True)
        return Proposal([sequence.tokens[-1:] * limit for sequence, limit in pairs], None)


class _Stopwatch:
    """A drafter that counts the seconds a round spends in it."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.feature_layers = drafter.feature_layers
        self.seconds = 0.0

    @property
    def num_bytes(self) -> int:
        """As the drafter says."""
        return self._drafter.num_bytes

    def admit(self, slot: int, sequence: Running, features: Tensor) -> None:
        """Not part of a round."""
        self._drafter.admit(slot, sequence, features)

    def propose(
        self,
        slots: list[int],
        sequences: list[Running],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Counted."""
        start = perf_counter()
        proposal = self._drafter.propose(slots, sequences, limits, draft_temperature)
        self.seconds += perf_counter() - start
        return proposal

    def ingest(self, slot: int, sequence: Running, features: Tensor) -> None:
        """Counted."""
        start = perf_counter()
        self._drafter.ingest(slot, sequence, features)
        self.seconds += perf_counter() - start

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Not part of a round."""
        return self._drafter.snapshot(slot)

    def restore(self, slot: int, sequence: Running, snapshot: DrafterSnapshot | None) -> None:
        """Not part of a round."""
        self._drafter.restore(slot, sequence, snapshot)


def _request(tokens: Sequence[int], max_len: int, temperature: float = 0.0) -> Request:
    """One that goes on as long as a slot does."""
    params = SamplingParams(temperature=temperature, max_tokens=max_len, ignore_eos=True)
    return Request(request_id="scaling", prompt_tokens=tuple(tokens), params=params)


def _repeating_text(num_tokens: int, vocab_size: int) -> list[int]:
    """Token ids that repeat after a while."""
    generator = random.Random(0)
    period = [generator.randrange(vocab_size) for _ in range(min(_PERIOD, num_tokens))]
    return [period[index % len(period)] for index in range(num_tokens)]

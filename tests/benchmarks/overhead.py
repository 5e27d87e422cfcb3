"""The share of a decode round that is spent outside the models.

The models' forward passes are timed by wrapping their methods; the rest of the round is drafting
without a model, accepting, sampling and bookkeeping.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from engine.drafters.base import Drafter
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.eagle3.head import Eagle3Head
from engine.engine import Engine
from engine.model import Transformer
from engine.request import Request
from engine.sampling import SamplingParams

# A call within another wrapped one belongs to the outer one.
_MODEL_METHODS: tuple[tuple[type, str], ...] = (
    (Transformer, "forward_with_features"),
    (Transformer, "logits"),
    (Eagle3Drafter, "_layer"),
    (Eagle3Head, "fuse"),
    (Eagle3Head, "logits"),
)
_WARM_UP_ROUNDS = 3
_SETTINGS = ((0.0, 1.0), (0.7, 0.95))  # temperature, top_p


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What decodes.

    Attributes:
        drafter: None is off.
        num_drafts: K.
    """

    drafter: Drafter | None
    num_drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How long a cell is timed.

    Attributes:
        num_rounds: Rounds,
        enough_s: or until this many seconds have passed,
        min_rounds: but at least these.
    """

    num_rounds: int = 40
    enough_s: float = 6.0
    min_rounds: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """One arm at one batch size and temperature.

    Attributes:
        arm: Name.
        batch: Requests in flight.
        temperature: Of the requests.
        top_p: Likewise.
        rounds: Rounds timed.
        round_s: Median time of a round.
        share: Median over the rounds of the share outside the models,
        share_low: the smallest
        share_high: and the largest.
    """

    arm: str
    batch: int
    temperature: float
    top_p: float
    rounds: int
    round_s: float
    share: float
    share_low: float
    share_high: float

    def describe(self) -> str:
        """The cell in words."""
        return f"{self.arm}, batch {self.batch}, T = {self.temperature:g}"

    def to_json(self) -> dict[str, object]:
        """As a JSON value."""
        return asdict(self)


@dataclass(slots=True)
class ModelTime:
    """Seconds spent in the models so far."""

    seconds: float = 0.0
    _depth: int = 0

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, timed unless a timed one calls it."""

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - begin

        return timed


@contextmanager
def timed_models() -> Iterator[ModelTime]:
    """Counts the time of every forward pass within the block."""
    spent = ModelTime()
    originals = [(owner, name, getattr(owner, name)) for owner, name in _MODEL_METHODS]
    for owner, name, method in originals:
        setattr(owner, name, spent.wrap(method))
    try:
        yield spent
    finally:
        for owner, name, method in originals:
            setattr(owner, name, method)


def measure_overheads(
    engine: Engine,
    arms: Mapping[str, Arm],
    prompts: Sequence[tuple[int, ...]],
    batches: Sequence[int],
    limit: Limit,
    on_cell: Callable[[str], None],
) -> list[Overhead]:
    """Time rounds of every arm at every batch size, greedy and sampled.

    Args:
        engine: Idle; with slots for the largest batch, each for a prompt and `longest_output`.
        arms: By name.
        prompts: At least as many as the largest batch.
        batches: Batch sizes.
        limit: How long each cell is timed.
        on_cell: Told which cell is next.
    """
    found = []
    with timed_models() as spent:
        for batch in batches:
            for name, arm in arms.items():
                for temperature, top_p in _SETTINGS:
                    on_cell(f"{name}, batch {batch}, T = {temperature:g}")
                    _admit(engine, arm, prompts[:batch], temperature, top_p, limit)
                    rounds = _time_rounds(engine, arm, spent, limit)
                    for slot in range(batch):
                        engine.release(slot)
                    shares = [1.0 - model_s / round_s for round_s, model_s in rounds]
                    found.append(
                        Overhead(
                            arm=name,
                            batch=batch,
                            temperature=temperature,
                            top_p=top_p,
                            rounds=len(rounds),
                            round_s=median(round_s for round_s, _ in rounds),
                            share=median(shares),
                            share_low=min(shares),
                            share_high=max(shares),
                        )
                    )
    return found


def longest_output(num_drafts: int, limit: Limit) -> int:
    """Tokens that no answer exceeds, whatever is accepted."""
    # One from the prefill; and one round to spare, since the last of an answer drafts less.
    return 1 + (_WARM_UP_ROUNDS + limit.num_rounds + 1) * (num_drafts + 1)


def _admit(
    engine: Engine,
    arm: Arm,
    prompts: Sequence[tuple[int, ...]],
    temperature: float,
    top_p: float,
    limit: Limit,
) -> None:
    engine.load(arm.drafter)
    for slot, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=longest_output(arm.num_drafts, limit),
            ignore_eos=True,
            seed=slot,
        )
        engine.admit(slot, Request(request_id=str(slot), prompt_tokens=prompt, params=params))


def _time_rounds(
    engine: Engine, arm: Arm, spent: ModelTime, limit: Limit
) -> list[tuple[float, float]]:
    """Seconds of each round, and of these in the models."""
    for _ in range(_WARM_UP_ROUNDS):
        engine.round(arm.num_drafts)
    rounds: list[tuple[float, float]] = []
    deadline = time.perf_counter() + limit.enough_s
    while len(rounds) < limit.num_rounds:
        if len(rounds) >= limit.min_rounds and time.perf_counter() > deadline:
            break
        spent.seconds = 0.0
        begin = time.perf_counter()
        engine.round(arm.num_drafts)
        rounds.append((time.perf_counter() - begin, spent.seconds))
    return rounds

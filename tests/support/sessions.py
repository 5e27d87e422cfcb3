"""Sessions in memory: a tiny target, its recorded answers and chosen drafters; and fake clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.device.detection import DeviceInfo
from autotune.settings import TuneSettings
from autotune.traffic.records import SampledRequest
from autotune.traffic.workload import Workload, fingerprint
from autotune.tuning.session import Session, Target
from engine.drafters.base import Drafter
from engine.engine import Engine
from engine.record import record
from engine.request import Request
from tests.support.tiny_models import tiny_engine, tiny_model


class FakeClock:
    """Every look at it takes a fixed time, so that a window has a known number of rounds."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.step_s = step_s
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time."""
        self.now_s += self.step_s
        return self.now_s


class QuietWatch:
    """Nobody else uses the processors, or always somebody does."""

    share = 0.0

    def others_share(self) -> float:
        """The chosen share."""
        return self.share


def memory_session(
    requests: Sequence[Request],
    drafters: Mapping[str, Callable[[Engine], Drafter]],
    *,
    engine: Engine | None = None,
    **settings: Any,
) -> Session:
    """A session around a tiny model, without files.

    Args:
        requests: What is recorded.
        drafters: Makers by name; the drafters get these names.
        engine: Idle; None makes one of 8 slots around the usual tiny target.
        settings: As in `TuneSettings`.
    """
    engine = engine or tiny_engine(tiny_model(7), slots=8, max_len=64)
    sampled = tuple(
        SampledRequest(request_id=r.request_id, prompt="text", temperature=r.params.temperature)
        for r in requests
    )
    built = {}
    for name, make in drafters.items():
        built[name] = make(engine)
        built[name].name = name
    return Session(
        settings=TuneSettings.parse(settings),
        device=DeviceInfo(kind="cpu", name="Test CPU", memory_bytes=1 << 30, cores=1),
        target=Target(
            name="tiny",
            folder=Path("/nowhere"),
            fingerprint="f" * 64,
            tokenizer_sha256="t" * 64,
            dtype="float32",
            backend="torch",
            num_parameters=1,
        ),
        workload=Workload(
            source="file:test.jsonl",
            fingerprint=fingerprint(sampled),
            requests=sampled,
            skipped={},
        ),
        engine=engine,
        trajectories=tuple(record(engine, list(requests), batch_size=8)),
        specs={},
        drafters=built,
    )

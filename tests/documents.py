"""Builders for published documents and their parts, with made-up but consistent contents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from autotune.document import (
    Cell,
    CellEvidenceModel,
    Device,
    EnvelopeModel,
    Identity,
    Interval,
    Match,
    Policy,
    PublishedConfig,
    Target,
    Workload,
)

Method = Literal["none", "ngram", "layer_skip", "draft_model", "eagle3"]
Parameters = dict[str, str | int | float]

LOOKUP: Parameters = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""What an n-gram envelope carries."""


def envelope(
    drafter: str,
    method: Method,
    k_max: int,
    temperature: float | None = None,
    parameters: Parameters | None = None,
) -> EnvelopeModel:
    """One restart-class part of a document."""
    return EnvelopeModel(
        drafter=drafter,
        method=method,
        max_num_speculative_tokens=k_max,
        draft_temperature=temperature,
        draft_parameters=parameters or {},
    )


NGRAM = envelope("ngram", "ngram", 4, parameters=LOOKUP)
"""N-gram lookup of 2 to 4 tokens, K up to 4."""


def cells(*starts: tuple[int, int], off_mode: Literal["k0", "unload"] = "k0") -> tuple[Cell, ...]:
    """Contiguous validated cells from `(first batch size, K)` pairs, the last one the tail."""
    ends = [lo - 1 for lo, _ in starts[1:]] + [None]
    return tuple(
        Cell(
            bs_lo=lo,
            bs_hi=hi,
            num_speculative_tokens=k,
            off_mode=None if k else off_mode,
            measured_at=lo,
            status="validated",
        )
        for (lo, k), hi in zip(starts, ends, strict=True)
    )


SCHEDULE = cells((1, 4), (8, 2), (32, 0))
"""Bug report B18: {1: 4, 8: 2, 32: off}."""


def figures(
    drafter: str, gains: dict[int, float | None], k: int = 3, temperature: float | None = None
) -> tuple[CellEvidenceModel, ...]:
    """Evidence with the given gain per batch size; None was not measured."""
    return tuple(
        CellEvidenceModel(
            batch_size=batch_size,
            drafter=drafter,
            num_speculative_tokens=k,
            draft_temperature=temperature,
            status="validated",
            reason="fastest",
            measured=None if gain is None else interval(gain),
            best_candidate=None,
            best_candidate_measured=None,
            predicted_tokens_per_s=None,
            predicted_off_tokens_per_s=None,
            tpot_s_baseline=None,
            tpot_s=None,
        )
        for batch_size, gain in gains.items()
    )


def interval(gain: float) -> Interval:
    """A measured gain over 100 tokens/s."""
    return Interval(
        gain=gain,
        low=gain - 0.01,
        high=gain + 0.01,
        confidence=0.95,
        num_blocks=20,
        std_error=0.005,
        request_std_error=0.0,
        baseline_tokens_per_s=100.0,
        candidate_tokens_per_s=100.0 * (1.0 + gain),
    )


def document(
    published: EnvelopeModel,
    schedule: tuple[Cell, ...] = SCHEDULE,
    evidence: tuple[CellEvidenceModel, ...] = (),
    source: str = "traffic.jsonl",
) -> PublishedConfig:
    """A whole document around an envelope and its schedule."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return PublishedConfig(
        identity=Identity(
            epoch="e", generation=1, created=at, refresh_after=at, expires=at, tuner_version="0"
        ),
        match=Match(
            target=Target(
                name="t", fingerprint="f", tokenizer_sha256="s", dtype="bfloat16", num_parameters=1
            ),
            device=Device(kind="cpu", name="Test CPU", fingerprint="d"),
            engine="spectuned",
            engine_version="0",
        ),
        workload=Workload(
            source=source,
            fingerprint="w",
            num_requests=1,
            share_by_task={"chat": 1.0},
            share_by_temperature={"0": 1.0},
        ),
        envelope=published,
        schedule=schedule,
        evidence=evidence,
        policy=Policy(
            hot_margin=0.01,
            restart_margin=0.03,
            harm_limit=0.01,
            confidence=0.95,
            between_sizes="lower",
        ),
        run_id="r",
        reason="test",
    )

"""A target, its drafters and recorded answers in memory, ready to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from autotune.device.detection import DeviceInfo, detect
from autotune.errors import ConfigError, TrafficError
from autotune.progress import Progress
from autotune.settings import TuneSettings
from autotune.traffic.workload import Workload, load_workload
from autotune.tuning.drafters import build_drafters, describe_drafters
from autotune.tuning.requests import RequestSet, to_requests
from engine.cache_folder import default_cache
from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.fingerprint import tokenizer_sha256, weights_fingerprint
from engine.checkpoint.hub import resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec, wanted_features, weight_bytes
from engine.engine import Engine
from engine.kernels.backend import fastest_dtype, release_freed_memory, resolve_backend
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.record import Trajectory, record
from engine.tokenizer import Tokenizer

_RECORD_BATCH = 16
_SNAPSHOT_SHARE = 0.25  # of the memory budget, for keys and values of recorded answers
_FREE_MEMORY_SHARE = 0.8
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The loaded model and what identifies it."""

    name: str
    folder: Path
    fingerprint: str
    tokenizer_sha256: str
    dtype: str
    backend: str
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything a measurement needs.

    Attributes:
        settings: As given.
        device: Where it runs.
        target: The model.
        workload: The requests in use.
        engine: Holds the model; idle between measurements.
        trajectories: The target's own answers.
        specs: Drafters by name, as described.
        drafters: The same drafters, built.
    """

    settings: TuneSettings
    device: DeviceInfo
    target: Target
    workload: Workload
    engine: Engine
    trajectories: tuple[Trajectory, ...]
    specs: Mapping[str, DrafterSpec]
    drafters: Mapping[str, Drafter]


def open_session(settings: TuneSettings, progress: Progress) -> Session:
    """Load the model, record answers and build the drafters.

    Drafters that do not fit are left out with a note; anything wrong with the target or the
    workload as a whole ends the attempt.

    Raises:
        AutotuneError: Settings, traffic or device are unusable.
        EngineError: The target cannot be loaded.
    """
    progress.begin("Load the model")
    detection = detect(settings.device)
    for text in detection.notes:
        progress.note(text)
    device = detection.chosen
    folder = resolve_model(settings.target, default_cache(), progress.note)
    config = read_config(folder)
    workload = load_workload(settings.traffic)
    budget = _memory_budget(settings, device)
    dtype = _resolve_dtype(settings, device)
    torch_device = torch.device("cuda" if device.kind == "cuda" else "cpu")
    resolved = resolve_backend(torch_device, dtype, settings.backend)
    if resolved.note is not None:
        progress.note(f"kernels: {resolved.backend}; native ones cannot be built: {resolved.note}")
    max_len = min(settings.max_len, config.max_position_embeddings)
    usable = to_requests(
        workload,
        Tokenizer(folder),
        progress,
        num_requests=settings.num_requests,
        seed=settings.seed,
        max_len=max_len,
        vocab_size=config.vocab_size,
    )
    max_len = min(max_len, -(-usable.longest // _ALIGN) * _ALIGN)
    slots = max(*settings.batch_sizes, _RECORD_BATCH)
    drafter_specs = describe_drafters(settings, config.num_layers, progress)
    feature_layers = wanted_features(drafter_specs, config.num_layers)
    room = budget - _target_bytes(config, dtype, slots, max_len, budget)
    per_token = KvCache.bytes_per_token(config, dtype)
    per_token += len(feature_layers) * config.hidden_size * dtype.itemsize
    used = usable.fit(min(room, budget * _SNAPSHOT_SHARE), per_token, settings.seed)
    if len(used.requests) < len(usable.requests):
        progress.note(
            f"{len(used.requests)} of {len(usable.requests)} requests used: memory holds no more "
            "answers"
        )
    weights = read_weights(folder, config)
    num_parameters = sum(tensor.numel() for tensor in weights.values())
    model = Transformer.from_weights(
        config,
        weights,
        dtype=dtype,
        device=torch_device,
        backend=resolved.backend,
        max_len=max_len,
    )
    del weights
    if resolved.backend == "native":
        release_freed_memory()
    engine = Engine(
        model, eos_token_ids=config.eos_token_ids, max_batch_size=slots, max_len=max_len
    )
    trajectories = _record(engine, used, feature_layers, progress)
    room -= sum(trajectory.num_bytes for trajectory in trajectories)
    target = Target(
        name=settings.target,
        folder=folder,
        fingerprint=weights_fingerprint(folder),
        tokenizer_sha256=tokenizer_sha256(folder),
        dtype=str(dtype).removeprefix("torch."),
        backend=resolved.backend,
        num_parameters=num_parameters,
    )
    drafters = build_drafters(
        drafter_specs, engine, folder, trajectories, budget_bytes=room, progress=progress
    )
    return Session(
        settings=settings,
        device=device,
        target=target,
        workload=used.workload,
        engine=engine,
        trajectories=trajectories,
        specs={name: spec for name, (spec, _) in drafters.items()},
        drafters={name: drafter for name, (_, drafter) in drafters.items()},
    )


def _resolve_dtype(settings: TuneSettings, device: DeviceInfo) -> torch.dtype:
    if settings.dtype != "auto":
        return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
    if device.kind == "cuda":
        return torch.bfloat16
    return fastest_dtype(multiplies_bfloat16=device.multiplies_bfloat16, wanted=settings.backend)


def _memory_budget(settings: TuneSettings, device: DeviceInfo) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    if device.memory_bytes is None:
        raise ConfigError(
            f"the memory of {device.name} is unknown: set memory_bytes to what may be used"
        )
    return int(device.memory_bytes * _FREE_MEMORY_SHARE)


def _target_bytes(
    config: ModelConfig, dtype: torch.dtype, slots: int, max_len: int, budget: int
) -> int:
    """Memory of the target's weights and cache.

    Raises:
        ConfigError: It is more than there is.
    """
    needed = weight_bytes(config, dtype) + slots * max_len * KvCache.bytes_per_token(config, dtype)
    if needed > budget:
        raise ConfigError(
            f"the target needs {needed / 2**20:.1f} MiB for weights and {slots} sequences of "
            f"{max_len} tokens, has {budget / 2**20:.1f} MiB: lower batch_sizes or max_len, or "
            "raise memory_bytes"
        )
    return needed


def _record(
    engine: Engine, used: RequestSet, feature_layers: tuple[int, ...], progress: Progress
) -> tuple[Trajectory, ...]:
    """The target's own answers.

    Raises:
        TrafficError: There is nothing to draft in any of them.
    """
    progress.begin("Record answers")
    expected = sum(request.params.max_tokens for request in used.requests)
    done = 0

    def on_tokens(count: int) -> None:
        nonlocal done
        done += count
        progress.update(min(done / expected, 1.0), f"{done} tokens")

    recorded = record(
        engine,
        list(used.requests),
        batch_size=_RECORD_BATCH,
        feature_layers=feature_layers,
        on_tokens=on_tokens,
    )
    if not any(trajectory.num_decoded for trajectory in recorded):
        raise TrafficError(
            f"{used.workload.source}: every answer ends with its first token, so no drafter can "
            "help"
        )
    return tuple(recorded)

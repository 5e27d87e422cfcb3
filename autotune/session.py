"""A target, its drafters and recorded answers in memory, ready to be measured."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autotune.device import DeviceInfo, detect
from autotune.errors import ConfigError, TrafficError
from autotune.progress import Progress
from autotune.settings import TuneSettings
from autotune.traffic.records import SampledRequest
from autotune.workload import Workload, load_workload
from engine.checkpoint.config import read_config
from engine.checkpoint.fingerprint import tokenizer_sha256, weights_fingerprint
from engine.checkpoint.hub import default_cache, resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec, build_drafter, layer_skip, ngram
from engine.engine import Engine
from engine.errors import EngineError
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.record import Trajectory, record
from engine.request import Request
from engine.sampling import SamplingParams
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
    device = detect(settings.device).chosen
    folder = resolve_model(settings.target, default_cache(), progress.note)
    config = read_config(folder)
    workload = load_workload(settings.traffic)
    budget = _memory_budget(settings, device)
    dtype = _resolve_dtype(settings, device)
    max_len = min(settings.max_len, config.max_position_embeddings)
    requests, workload = _to_requests(workload, Tokenizer(folder), settings, max_len, progress)
    longest = max(len(r.prompt_tokens) + r.params.max_tokens for r in requests)
    max_len = min(max_len, -(-longest // _ALIGN) * _ALIGN)
    weights = read_weights(folder, config)
    num_parameters = sum(tensor.numel() for tensor in weights.values())
    model = Transformer.from_weights(
        config,
        weights,
        dtype=dtype,
        device=torch.device("cuda" if device.kind == "cuda" else "cpu"),
        max_len=max_len,
    )
    del weights
    engine = Engine(
        model,
        eos_token_ids=config.eos_token_ids,
        max_batch_size=max(*settings.batch_sizes, _RECORD_BATCH),
        max_len=max_len,
    )
    per_token = KvCache.bytes_per_token(config, dtype)
    requests = _fit_snapshots(requests, budget, per_token, progress)
    trajectories = _record(engine, requests, progress)
    target = Target(
        name=settings.target,
        folder=folder,
        fingerprint=weights_fingerprint(folder),
        tokenizer_sha256=tokenizer_sha256(folder),
        dtype=str(dtype).removeprefix("torch."),
        num_parameters=num_parameters,
    )
    drafters: dict[str, Drafter] = {}
    specs: dict[str, DrafterSpec] = {}
    for spec in _specs(settings, config.num_layers):
        try:
            drafters[spec.name] = build_drafter(spec, engine, folder, budget_bytes=budget // 2)
            specs[spec.name] = spec
        except EngineError as error:
            progress.note(f"drafter {spec.name} skipped: {error}")
    return Session(
        settings=settings,
        device=device,
        target=target,
        workload=workload,
        engine=engine,
        trajectories=trajectories,
        specs=specs,
        drafters=drafters,
    )


def _specs(settings: TuneSettings, num_layers: int) -> list[DrafterSpec]:
    """The drafters to try, cheapest first."""
    depths = settings.layer_skip
    if depths is None:
        # A third, two thirds and nearly all of the target: draft size as a search axis.
        depths = tuple(sorted({num_layers // 3, 2 * num_layers // 3, num_layers - 4} - {0}))
        depths = tuple(depth for depth in depths if 0 < depth < num_layers)
    specs = [ngram()] if settings.ngram else []
    specs += [layer_skip(depth) for depth in depths]
    specs += [
        DrafterSpec(name=name, method="draft_model", folder=folder)
        for name, folder in settings.drafters.items()
    ]
    return specs


def _resolve_dtype(settings: TuneSettings, device: DeviceInfo) -> torch.dtype:
    """`auto` takes bfloat16 only where the hardware multiplies it: elsewhere it is emulated."""
    if settings.dtype == "auto":
        native = device.kind == "cuda" or {"amx_bf16", "avx512_bf16"} & set(device.isa)
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32


def _memory_budget(settings: TuneSettings, device: DeviceInfo) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    if device.memory_bytes is None:
        raise ConfigError(
            f"the memory of {device.name} is unknown: set memory_bytes to what may be used"
        )
    return int(device.memory_bytes * _FREE_MEMORY_SHARE)


def _to_requests(
    workload: Workload,
    tokenizer: Tokenizer,
    settings: TuneSettings,
    max_len: int,
    progress: Progress,
) -> tuple[list[Request], Workload]:
    """Tokenise a fair sample of the workload; requests that do not fit are counted."""
    sample = workload.sample(settings.num_requests, settings.seed)
    skipped = Counter(workload.skipped)
    requests: list[Request] = []
    kept: list[SampledRequest] = []
    for index, sampled in enumerate(sample.requests):
        tokens = _prompt_tokens(sampled, tokenizer)
        stops = [tokenizer.encode(stop) for stop in sampled.stop]
        if any(len(stop) != 1 for stop in stops):
            skipped["stop string of more than one token"] += 1
        elif not tokens:
            skipped["empty prompt"] += 1
        elif len(tokens) + sampled.max_tokens > max_len:
            skipped[f"longer than max_len = {max_len} tokens"] += 1
        else:
            kept.append(sampled)
            requests.append(
                Request(
                    request_id=f"{index}",
                    prompt_tokens=tuple(tokens),
                    task=sampled.task,
                    params=SamplingParams(
                        temperature=sampled.temperature,
                        top_p=sampled.top_p,
                        top_k=sampled.top_k,
                        max_tokens=sampled.max_tokens,
                        seed=derive_seed(settings.seed, "request", index, sampled.seed),
                        stop_token_ids=frozenset(stop[0] for stop in stops),
                    ),
                )
            )
    if skipped:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        progress.note(f"requests skipped: {counts}")
    if not requests:
        raise TrafficError(f"{workload.source}: no request can be used with this model")
    return requests, replace(sample, requests=tuple(kept), skipped=dict(skipped))


def _prompt_tokens(sampled: SampledRequest, tokenizer: Tokenizer) -> list[int]:
    if sampled.prompt is not None:
        return tokenizer.encode(sampled.prompt, add_special_tokens=True)
    messages = [{"role": m.role, "content": m.content} for m in sampled.messages]
    return tokenizer.encode(tokenizer.render_chat(messages))


def _fit_snapshots(
    requests: list[Request], budget: int, bytes_per_token: int, progress: Progress
) -> list[Request]:
    """Keep as many requests as the keys and values of their answers leave room for."""
    room = budget * _SNAPSHOT_SHARE / bytes_per_token
    kept: list[Request] = []
    for request in requests:
        room -= len(request.prompt_tokens) + request.params.max_tokens
        if room < 0 and len(kept) >= 2:
            break
        kept.append(request)
    if len(kept) < len(requests):
        progress.note(f"{len(kept)} of {len(requests)} requests used: memory holds no more answers")
    return kept


def _record(engine: Engine, requests: list[Request], progress: Progress) -> tuple[Trajectory, ...]:
    progress.begin("Record answers")
    expected = sum(request.params.max_tokens for request in requests)
    done = 0

    def on_tokens(count: int) -> None:
        nonlocal done
        done += count
        progress.update(min(done / expected, 1.0), f"{done} tokens")

    recorded = record(engine, requests, batch_size=_RECORD_BATCH, on_tokens=on_tokens)
    return tuple(recorded)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

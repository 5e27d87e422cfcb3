"""What a drafter learns from and is judged on: requests, and the target's answers to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import ConfigError
from autotune.progress import Progress
from autotune.traffic.workload import Workload, load_workload
from autotune.training.answers import Bounds, answer, read_answers
from autotune.training.prompts import (
    answer_plan,
    heldout_plan,
    split_by_prompt,
    without_heldout,
)
from autotune.training.settings import TrainSettings
from autotune.training.source import Source, read_source, write_source
from autotune.training.students import check_target, recorded_layers
from autotune.tuning.requests import to_requests
from engine.cache_folder import default_cache
from engine.checkpoint.config import ModelConfig, read_config
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.hub import resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.engine import Engine
from engine.errors import TrainingError
from engine.model import Transformer
from engine.request import Request
from engine.tokenizer import Tokenizer
from engine.training.corpus import Example

_MAX_REQUESTS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What there is to answer.

    Attributes:
        folder: The target's.
        config: The target's.
        source: Who answers what.
        asked: Requests to learn from; none where a corpus was given.
        heldout: Requests to be judged on.
    """

    folder: Path
    config: ModelConfig
    source: Source
    asked: list[Request]
    heldout: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Answers of the target, with its states.

    Attributes:
        examples: To learn from.
        heldout: To be judged on.
    """

    examples: list[Example]
    heldout: list[Example]


def read_task(settings: TrainSettings, progress: Progress) -> Task:
    """Find the target and tokenise the requests.

    Raises:
        AutotuneError: Settings or requests are unusable.
        EngineError: The target is unusable.
    """
    folder = resolve_model(settings.target, default_cache(), progress.note)
    config = read_config(folder)
    check_target(settings, config)
    workload, heldout = _workloads(settings, progress)
    tokenizer = Tokenizer(folder)

    def tokenised(source: Workload, num_requests: int) -> Sequence[Request]:
        return to_requests(
            source,
            tokenizer,
            progress,
            num_requests=num_requests,
            seed=settings.seed,
            max_len=_max_len(settings, config),
            vocab_size=config.vocab_size,
        ).requests

    held = heldout_plan(tokenised(heldout, settings.num_heldout))
    asked: list[Request] = []
    if workload is not None:
        asked = answer_plan(tokenised(workload, _MAX_REQUESTS), settings.seed)
    target = weights_fingerprint(folder)
    if settings.corpus is None:
        source = Source(target_fingerprint=target, prompts_sha256=file_sha256(settings.workload))
    else:
        source = read_source(settings.corpus, target)
    return Task(folder=folder, config=config, source=source, asked=asked, heldout=held)


def gather(settings: TrainSettings, task: Task, progress: Progress) -> Material:
    """Answer what is not answered yet, and read all answers.

    Raises:
        ConfigError: A given corpus has other states than the method reads.
        EngineError: The target cannot be loaded, or there is no usable answer.
    """
    config = task.config
    model = Transformer.from_weights(
        config, read_weights(task.folder, config), max_len=_max_len(settings, config)
    )
    engine = Engine(
        model,
        eos_token_ids=config.eos_token_ids,
        max_batch_size=min(settings.batch_size, max(len(task.asked), len(task.heldout))),
        max_len=model.max_len,
    )
    layers = recorded_layers(settings.method, config)

    def told(share: float, num_tokens: int) -> None:
        progress.update(share, f"{num_tokens} tokens")

    progress.begin("Answer the held-out prompts")
    judged = settings.work / "heldout"
    answer(engine, task.heldout, judged, layers, Bounds(), told)
    corpus = settings.corpus or settings.work / "corpus"
    if settings.corpus is None:
        progress.begin("Answer the prompts")
        write_source(corpus, task.source)
        bounds = Bounds(seconds=settings.generation_s, size_bytes=settings.max_corpus_gib * 2**30)
        answer(engine, task.asked, corpus, layers, bounds, told)
    heldout = read_answers(judged)
    examples = _without_prompts_of(heldout, read_answers(corpus))
    if not examples or not heldout:
        raise TrainingError(
            f"{corpus if heldout else judged}: holds no answer of three tokens or more to a prompt "
            "that is not held out: raise the budget, or give other requests"
        )
    _check_width(examples, config.hidden_size * len(layers), settings)
    return Material(examples=examples, heldout=heldout)


def file_sha256(path: Path | None) -> str | None:
    """SHA-256 of a file; None without one."""
    if path is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _max_len(settings: TrainSettings, config: ModelConfig) -> int:
    return min(settings.max_len, config.max_position_embeddings)


def _workloads(settings: TrainSettings, progress: Progress) -> tuple[Workload | None, Workload]:
    """Requests to learn from, none where a corpus was given, and held-out ones.

    Raises:
        AutotuneError: One of the two is missing or unusable.
    """
    if settings.workload is None and (settings.corpus is None or settings.heldout is None):
        raise ConfigError(
            "workload = None: name a file of requests; only with both a corpus and a file of "
            "held-out requests is none needed"
        )
    asked = None
    if settings.workload is not None:
        asked = load_workload(settings.workload, limit=_MAX_REQUESTS)
    if settings.heldout is not None:
        heldout = load_workload(settings.heldout, limit=_MAX_REQUESTS)
        if asked is not None:
            asked = without_heldout(asked, heldout, progress)
    else:
        assert asked is not None  # as checked above
        asked, heldout = split_by_prompt(asked, settings.heldout_share, settings.seed)
    return (asked if settings.corpus is None else None), heldout


def _without_prompts_of(heldout: list[Example], examples: list[Example]) -> list[Example]:
    """A corpus that was given may hold held-out prompts; those are not learned from."""
    held = {tuple(e.tokens[: e.prompt_len].tolist()) for e in heldout}
    return [e for e in examples if tuple(e.tokens[: e.prompt_len].tolist()) not in held]


def _check_width(examples: list[Example], width: int, settings: TrainSettings) -> None:
    """Refuse the states of another model, or fewer layers than the method reads."""
    found = examples[0].states.shape[1]
    fits = found == width if settings.method == "eagle3" else found % width == 0
    if not fits:
        raise ConfigError(
            f"corpus = {settings.corpus}: holds {found} values per token, {settings.method} on "
            f"{settings.target} reads {width}: answer the prompts anew without --corpus"
        )

"""A training run from settings to a finished drafter; killed, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import torch

from autotune.device.detection import detect
from autotune.errors import ConfigError
from autotune.progress import Progress, Stage
from autotune.training.material import Task, file_sha256, gather, read_task
from autotune.training.plot import write_plots
from autotune.training.settings import TrainSettings
from autotune.training.students import Apprentice, make_apprentice, recorded_layers
from engine.checkpoint.hub import EMBEDDED
from engine.checkpoint.model_folder import new_folder, require_free
from engine.checkpoint.safetensors_reader import read_weights
from engine.record import Trajectory
from engine.training.acceptance import MAX_K, acceptance_table
from engine.training.card import TrainingFacts, write_card
from engine.training.corpus import Example
from engine.training.heldout import to_trajectories
from engine.training.identity import DataFacts, data_facts
from engine.training.state import TrainingState
from engine.training.teacher import Teacher
from engine.training.trainer import TrainerSettings, train

SETTINGS_NAME = "settings.json"
_INTERVALS = 12
_MAX_INTERVAL_S = 150.0
_MAX_PROFILE_LEN = 2**30  # answers end by themselves, not at the end of a slot
_HUB_NAMES = {EMBEDDED: "HuggingFaceTB/SmolLM2-135M-Instruct"}
_LICENSES = {EMBEDDED: "apache-2.0"}
_OTHER_LICENSE = "other"


def train_drafter(
    settings: TrainSettings, progress: Progress, *, keep_work: bool = False
) -> TrainingFacts:
    """Answer prompts, train, score and export a drafter.

    A run that was stopped leaves `settings.work`; the same settings then go on from there, and
    at most one interval of training and the answers in flight are lost.

    Args:
        settings: What to train.
        progress: Told what is being done.
        keep_work: Leave the work folder, answers and states included.

    Returns:
        What was written to the card.

    Raises:
        AutotuneError: Settings or requests are unusable.
        EngineError: The target, a corpus or the output folder cannot be used.
    """
    require_free(settings.out)
    progress.plan(_stages(settings))
    progress.begin("Load the model")
    task = read_task(settings, progress)
    _claim(settings)  # not before everything that may be mistyped was looked at
    material = gather(settings, task, progress)
    weights = read_weights(task.folder, task.config)
    longest = max(e.tokens.shape[0] for e in (*material.examples, *material.heldout))
    teacher = Teacher.from_weights(task.config, weights, longest + MAX_K + 1)
    del weights
    apprentice = make_apprentice(settings, task.folder, teacher, material.examples)
    layers = recorded_layers(settings.method, task.config)
    trajectories = to_trajectories(material.heldout, teacher, layers)
    data, heldout = data_facts(material.examples), data_facts(material.heldout)
    state = _train(settings, apprentice, material.examples, trajectories, data, progress)
    facts = _facts(settings, task, apprentice, state, (data, heldout), trajectories, progress)
    progress.begin("Export")
    with new_folder(settings.out) as folder:
        apprentice.write(folder)
        write_card(folder, facts)
        write_plots(folder, facts.curve)
    if not keep_work:
        shutil.rmtree(settings.work)
    return facts


def _claim(settings: TrainSettings) -> None:
    """Take the work folder, or refuse that of a run with other settings.

    Raises:
        ConfigError: The settings differ.
    """
    path = settings.work / SETTINGS_NAME
    wanted = settings.model_dump(mode="json")
    try:
        settings.work.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            scratch = path.with_suffix(".part")
            scratch.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
            scratch.replace(path)
            return
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be used ({error})") from error
    differing = sorted(key for key in wanted if found.get(key) != wanted[key])
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{settings.work} holds an unfinished run with {key} = {found.get(key)!r}, not "
            f"{wanted[key]!r}: repeat its command, remove the folder, or name another --out"
        )


def _stages(settings: TrainSettings) -> list[Stage]:
    return [
        Stage("Load the model", 10),
        Stage("Answer the held-out prompts", 0.6 * settings.num_heldout),
        Stage("Answer the prompts", settings.generation_s),
        Stage("Train", 1.2 * settings.training_s),
        Stage("Score the held-out answers", 0.1 * settings.num_heldout),
        Stage("Export", 5),
    ]


def _train(
    settings: TrainSettings,
    apprentice: Apprentice,
    examples: list[Example],
    trajectories: list[Trajectory],
    data: DataFacts,
    progress: Progress,
) -> TrainingState:
    progress.begin("Train")
    interval_s = min(_MAX_INTERVAL_S, settings.training_s / _INTERVALS)
    fingerprint = hashlib.sha256(f"{data.sha256} {settings.model_dump_json()}".encode()).hexdigest()

    def on_step(state: TrainingState) -> None:
        progress.update(state.elapsed_s / settings.training_s, _standing(state))

    return train(
        apprentice.student,
        examples,
        trajectories,
        TrainerSettings(
            budget_s=settings.training_s,
            learning_rate=settings.learning_rate,
            interval_s=interval_s,
            seed=settings.seed,
            mixed_precision=detect("cpu").chosen.multiplies_bfloat16,
        ),
        settings.work,
        fingerprint=fingerprint,
        on_step=on_step,
    )


def _standing(state: TrainingState) -> str:
    if not state.history:
        return f"step {state.step}"
    last = state.history[-1]
    return (
        f"step {state.step}, loss {last.loss:.2f}, training acceptance {last.acceptance[0]:.2f}, "
        f"held-out tokens per round {last.score:.2f}"
    )


def _facts(
    settings: TrainSettings,
    task: Task,
    apprentice: Apprentice,
    state: TrainingState,
    data: tuple[DataFacts, DataFacts],
    trajectories: list[Trajectory],
    progress: Progress,
) -> TrainingFacts:
    """Score the finished drafter and gather what its card says."""
    progress.begin("Score the held-out answers")
    best = state.best
    assert best is not None  # a finished run was evaluated
    acceptance = acceptance_table(
        lambda trajectory: apprentice.student.profile(trajectory, MAX_K, _MAX_PROFILE_LEN),
        trajectories,
        on_answer=lambda done: progress.update(done / len(trajectories)),
    )
    return TrainingFacts(
        method=settings.method,
        target=Path(settings.target).name,
        target_fingerprint=task.source.target_fingerprint,
        base_model=_HUB_NAMES.get(settings.target, _base_model(settings.target)),
        license=_LICENSES.get(settings.target, _OTHER_LICENSE),
        layers=apprentice.layers,
        draft_vocab_size=apprentice.draft_vocab_size,
        num_parameters=apprentice.num_parameters,
        data=data[0],
        heldout=data[1],
        prompts_sha256=task.source.prompts_sha256,
        heldout_sha256=file_sha256(settings.heldout),
        seed=settings.seed,
        budget_s=settings.training_s,
        trained_s=state.elapsed_s,
        steps=state.step,
        num_tokens_seen=state.num_tokens,
        best_step=best.step,
        peak_learning_rate=settings.learning_rate,
        versions={"torch": torch.__version__, "spectuned": version("spectuned")},
        curve=tuple(state.history),
        acceptance=acceptance,
    )


def _base_model(target: str) -> str:
    """A hub repository as it is; of a folder the name alone: its path is nobody's business."""
    return Path(target).name if Path(target).expanduser().is_dir() else target

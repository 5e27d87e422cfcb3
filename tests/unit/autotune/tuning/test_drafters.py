"""Which drafters a search tries: what is left out, and what the operator is told about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.progress import Silent
from autotune.settings import TuneSettings
from autotune.tuning.drafters import build_drafters, describe_drafters
from engine.drafters.base import Drafter
from engine.drafters.eagle3.calibrate import Calibration
from engine.drafters.factory import DrafterSpec, from_folder, ngram
from engine.engine import Engine
from engine.record import Trajectory, record
from engine.training.export import write_eagle3
from tests.support.eagle3 import fitted_head, random_head
from tests.support.tiny_models import random_prompt, request, tiny_engine, tiny_model

TARGET = tiny_model(7, head_scale=1.0, layer_scale=0.1)
LAYERS = (0, 1, 2)
PLENTY = 1 << 30


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Idle, around a target that a small head can follow."""
    return tiny_engine(TARGET, slots=8, max_len=64)


@pytest.fixture(scope="module")
def answers(engine: Engine) -> list[Trajectory]:
    """Recorded answers, greedy and sampled."""
    asked = [
        request(random_prompt(i, 3), name=str(i), temperature=float(i % 2), max_tokens=60, seed=i)
        for i in range(16)
    ]
    return record(engine, asked, batch_size=8)


def written(folder: Path, *, fitted: bool = True) -> Path:
    """A head on disk."""
    folder.mkdir()
    head = fitted_head(TARGET, LAYERS) if fitted else random_head(TARGET, layers=LAYERS)
    write_eagle3(head, folder)
    return folder


def built(
    specs: list[DrafterSpec],
    engine: Engine,
    answers: list[Trajectory],
    *,
    budget_bytes: float = PLENTY,
) -> tuple[dict[str, Drafter], list[str]]:
    """The drafters by name, and the notes."""
    progress = Silent()
    found = build_drafters(
        specs, engine, Path("/nowhere"), answers, budget_bytes=budget_bytes, progress=progress
    )
    assert all(spec.name == name for name, (spec, _) in found.items())
    return {name: drafter for name, (_, drafter) in found.items()}, progress.notes


def verdict(
    monkeypatch: pytest.MonkeyPatch, *, chance: float = 0.1, **agreement: float
) -> list[list[list[int]]]:
    """Let calibration find given shares at 1000 positions; returns the texts that it gets."""
    given: list[list[list[int]]] = []
    shifts = {"below": -1, "own": 0, "above": 1}

    def calibrated(drafter: Any, engine: Engine, texts: list[list[int]]) -> Calibration:
        given.append(texts)
        return Calibration(
            layers=drafter.feature_layers,
            num_positions=1000,
            agreement={shifts[name]: share for name, share in agreement.items()},
            differing={shifts[name]: 0.5 for name in agreement},
            chance=chance,
        )

    monkeypatch.setattr("autotune.tuning.drafters.calibrate", calibrated)
    return given


# ---------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("settings", "num_layers", "names"),
    [
        ({}, 30, ["ngram", "layer-skip-10", "layer-skip-20", "layer-skip-26"]),
        ({}, 2, ["ngram", "layer-skip-1"]),
        ({"ngram": False}, 6, ["layer-skip-2", "layer-skip-4"]),
        ({"layer_skip": (3,)}, 30, ["ngram", "layer-skip-3"]),
        ({"layer_skip": ()}, 30, ["ngram"]),
    ],
)
def test_the_usual_drafters(settings: dict[str, object], num_layers: int, names: list[str]) -> None:
    """Lookup and parts of the target, unless the settings say otherwise."""
    progress = Silent()

    specs = describe_drafters(
        TuneSettings.parse({"drafters": {}, **settings}), num_layers, progress
    )

    assert [spec.name for spec in specs] == names
    assert progress.notes == []


def test_folders_are_told_apart_and_unreadable_ones_noted(tmp_path: Path) -> None:
    """A head and a whole model by their configurations; a missing folder ends nothing."""
    head = written(tmp_path / "head")
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    settings = TuneSettings.parse(
        {
            "ngram": False,
            "layer_skip": (),
            "drafters": {"gone": tmp_path / "gone", "head": head, "small": whole},
        }
    )
    progress = Silent()

    specs = describe_drafters(settings, 3, progress)

    assert [(spec.name, spec.method) for spec in specs] == [
        ("head", "eagle3"),
        ("small", "draft_model"),
    ]
    (note,) = progress.notes
    assert note.startswith("drafter gone skipped: ")
    assert str(tmp_path / "gone") in note


# ---------------------------------------------------------------- heads on the target's answers


def test_a_head_that_follows_the_target_is_kept(
    tmp_path: Path, engine: Engine, answers: list[Trajectory]
) -> None:
    """Without a word."""
    found, notes = built([ngram(), from_folder("head", written(tmp_path / "h"))], engine, answers)

    assert list(found) == ["ngram", "head"]
    assert notes == []
    assert engine.sequences == {}


def test_a_head_of_another_target_is_left_out(
    tmp_path: Path, engine: Engine, answers: list[Trajectory]
) -> None:
    """It has the right shape and learnt nothing: the note has its share and that of chance."""
    head = from_folder("odd", written(tmp_path / "odd", fitted=False))

    found, notes = built([head, ngram()], engine, answers)

    assert list(found) == ["ngram"]
    (note,) = notes
    assert note.startswith("drafter odd skipped: its first draft is the target's choice in ")
    assert "% of 992 positions, chance is " in note  # 16 texts of 63 tokens, less one each
    assert note.endswith("it was made for another model or reads other layers")


def test_ids_that_are_off_by_one_are_named_beside_the_better_ones(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sets and the share at every shift; the head stays, it is still lossless."""
    verdict(monkeypatch, own=0.2, above=0.61)

    found, notes = built([from_folder("head", written(tmp_path / "h"))], engine, answers)

    assert list(found) == ["head"]
    assert notes == [
        "drafter head reads the inputs of layers [0, 1, 2], but [1, 2, 3] fit it better "
        "(as configured: 20.0%, +1: 61.0%): the layer ids in its config.json are probably off by "
        "one"
    ]


def test_chance_is_said_before_better_layers(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One note for one head, and it is not tried."""
    verdict(monkeypatch, chance=0.3, own=0.2, above=0.6)

    found, notes = built([from_folder("head", written(tmp_path / "h"))], engine, answers)

    assert found == {}
    assert len(notes) == 1
    assert "in 20.0% of 1000 positions, chance is 30.0%" in notes[0]


def test_calibration_reads_so_many_tokens(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts and answers in order, 2,048 tokens of them."""
    given = verdict(monkeypatch, own=0.6)

    built([from_folder("head", written(tmp_path / "h"))], engine, answers * 4)

    (texts,) = given
    assert sum(len(text) for text in texts) == 2048
    assert texts[0] == [*answers[0].request.prompt_tokens, *answers[0].output_tokens]


# ---------------------------------------------------------------- memory


def test_memory_is_given_out_in_order(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Room for one head and a half: the second is left out, and what needs none is still built."""
    verdict(monkeypatch, own=0.6)
    specs = [from_folder(name, written(tmp_path / name)) for name in ("first", "second")]
    (alone,) = built(specs[:1], engine, answers)[0].values()

    found, notes = built([*specs, ngram()], engine, answers, budget_bytes=1.5 * alone.num_bytes)

    assert list(found) == ["first", "ngram"]
    (note,) = notes
    assert note.startswith("drafter second skipped: needs 0.")


def test_a_head_that_is_left_out_takes_no_memory(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
) -> None:
    """The next one has its room."""
    odd = from_folder("odd", written(tmp_path / "odd", fitted=False))
    good = from_folder("good", written(tmp_path / "good"))
    (alone,) = built([good], engine, answers)[0].values()

    found, notes = built([odd, good], engine, answers, budget_bytes=alone.num_bytes)

    assert list(found) == ["good"]
    assert len(notes) == 1


@pytest.mark.parametrize("broken", [lambda f: f.unlink(), lambda f: f.write_bytes(b"nothing")])
def test_files_that_cannot_be_read_are_noted(
    tmp_path: Path,
    engine: Engine,
    answers: list[Trajectory],
    broken: Callable[[Path], object],
) -> None:
    """The search goes on with the others."""
    folder = written(tmp_path / "head")
    broken(folder / "model.safetensors")

    found, notes = built([from_folder("head", folder), ngram()], engine, answers)

    assert list(found) == ["ngram"]
    (note,) = notes
    assert note.startswith("drafter head skipped: ")
    assert str(folder) in note


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ["ngram", "layer-skip-10", "layer-skip-20", "layer-skip-26"]),
        ({"given": True}, ["ngram", "given"]),
        ({"given": True, "layer_skip": (4,)}, ["ngram", "layer-skip-4", "given"]),
    ],
)
def test_layers_of_the_target_stand_in_for_other_drafters(
    tmp_path: Path, values: dict[str, Any], names: list[str]
) -> None:
    """Three depths are tried where there is nothing else, or those that were asked for."""
    if values.pop("given", False):
        values["drafters"] = {"given": written(tmp_path / "given", fitted=False)}
    settings = TuneSettings(target="somebody/else", **values)
    assert [spec.name for spec in describe_drafters(settings, 30, Silent())] == names

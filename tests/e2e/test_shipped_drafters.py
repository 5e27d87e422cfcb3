"""The drafters that come with spectuned, on the target they were trained for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.progress import Silent
from autotune.settings import DEFAULT_TARGET, TuneSettings
from autotune.shipped import shipped_drafters
from autotune.tuning.drafters import build_drafters
from engine.cache_folder import default_cache
from engine.checkpoint.config import read_config
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.hub import EMBEDDED, resolve_model
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.factory import from_folder, wanted_features
from engine.drafters.profiling import profile
from engine.engine import Engine
from engine.model import Transformer
from engine.record import Trajectory, record
from engine.replay import replay
from engine.request import Request
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Why is the sky blue? Answer in two sentences.",
    "Tell me a short story about a lighthouse keeper and a storm.",
    "Extract the date and the amount: 'Invoice 4711 of 3 March 2021 over 1,250.00 EUR is due.'",
)
NUM_TOKENS = 64
MAX_LEN = 192
MAX_TOTAL_BYTES = 45 * 2**20
FIRST_POSITION = {"pruned-1": 0.147, "pruned-2": 0.269, "eagle3": 0.314}
"""Share of rounds whose first draft is accepted on these prompts, greedily, when they shipped."""
TOLERANCE = 0.05


@pytest.fixture(scope="module")
def folder() -> Path:
    """The embedded model, fetched on first use."""
    return resolve_model(EMBEDDED, default_cache(), lambda _: None)


@pytest.fixture(scope="module")
def measured(folder: Path) -> tuple[Engine, list[Trajectory], Mapping[str, Drafter], Silent]:
    """The engine, its greedy answers, and the shipped drafters built for it, with all notes."""
    config = read_config(folder)
    model = Transformer.from_weights(config, read_weights(folder, config), max_len=MAX_LEN)
    engine = Engine(model, eos_token_ids=(), max_batch_size=len(PROMPTS), max_len=MAX_LEN)
    tokenizer = Tokenizer(folder)
    requests = [
        Request(
            request_id=str(index),
            prompt_tokens=tuple(
                tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": text}]))
            ),
            params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
        )
        for index, text in enumerate(PROMPTS)
    ]
    specs = [from_folder(name, path) for name, path in shipped_drafters().items()]
    layers = wanted_features(specs, config.num_layers)
    answers = record(engine, requests, batch_size=len(requests), feature_layers=layers)
    notes = Silent()
    built = build_drafters(specs, engine, folder, answers, budget_bytes=2 * 2**30, progress=notes)
    return engine, answers, {name: drafter for name, (_, drafter) in built.items()}, notes


def test_the_embedded_default_is_searched_with_them() -> None:
    """They are candidates of the embedded target, and of no other one."""
    assert TuneSettings().drafters == shipped_drafters()
    assert len(shipped_drafters()) >= 3
    assert TuneSettings(target="somebody/else").drafters == {}
    assert TuneSettings().target == DEFAULT_TARGET


def test_they_are_small_and_say_where_they_come_from(folder: Path) -> None:
    """All together stay below the limit; each has a card, and its facts name this very target."""
    total = 0
    for name, path in shipped_drafters().items():
        total += sum(file.stat().st_size for file in path.iterdir())
        facts = json.loads((path / "training.json").read_text())
        assert facts["target_fingerprint"] == weights_fingerprint(folder), name
        assert "## Acceptance on held-out answers" in (path / "README.md").read_text()
    assert total <= MAX_TOTAL_BYTES


def test_all_of_them_fit_the_target(
    measured: tuple[Engine, list[Trajectory], Mapping[str, Drafter], Silent],
) -> None:
    """None is left out, and no head asks for other layers than it was trained on."""
    _, _, drafters, notes = measured
    assert list(drafters) == list(shipped_drafters())
    assert notes.notes == []


def test_they_accept_what_they_accepted_when_they_shipped(
    measured: tuple[Engine, list[Trajectory], Mapping[str, Drafter], Silent],
) -> None:
    """A wrong layer id, rotary table or vocabulary map raises nothing and shows only here."""
    engine, answers, drafters, _ = measured
    found = {}
    for name, drafter in drafters.items():
        profiles = [
            profile(drafter, answer, (None,), max_drafts=1, max_len=engine.max_len)[0][0]
            for answer in answers
        ]
        counts = replay(profiles, 1)
        rounds = counts.num_rounds_by_drafts[:, 1].sum()
        found[name] = float(counts.num_accepted_per_pos.sum() / rounds)
    assert found == pytest.approx(FIRST_POSITION, abs=TOLERANCE)

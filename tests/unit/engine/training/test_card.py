"""The model card says what was measured, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from engine.training.acceptance import AcceptanceRow
from engine.training.card import CARD_NAME, FACTS_NAME, TrainingFacts, write_card
from engine.training.identity import DataFacts
from engine.training.state import Evaluation

DATA = DataFacts(
    sha256="d" * 64,
    num_answers=1234,
    num_distinct_answers=1200,
    num_answer_tokens=98765,
    answers_by_task={"chat": 1234},
)
HELDOUT = replace(DATA, sha256="e" * 64, num_answers=12, num_answer_tokens=345)
ROWS = tuple(
    AcceptanceRow(
        task="chat",
        temperature=0.7,
        num_answers=12,
        num_speculative_tokens=k,
        tokens_per_round=1 + 0.25 * k,
        std_error=0.0125 if k == 1 else None,
        accepted_per_pos=(0.25,) * k,
    )
    for k in (1, 2)
)
FACTS = TrainingFacts(
    method="eagle3",
    target="tiny",
    target_fingerprint="a" * 64,
    base_model='owner/ti"ny',
    license="apache-2.0",
    layers=(2, 15, 27),
    draft_vocab_size=8192,
    num_parameters=9_800_000,
    data=DATA,
    heldout=HELDOUT,
    prompts_sha256="b" * 64,
    heldout_sha256=None,
    seed=7,
    budget_s=1080.0,
    trained_s=1079.5,
    steps=4321,
    num_tokens_seen=300_000,
    best_step=4000,
    peak_learning_rate=1e-3,
    versions={"torch": "2.13.0"},
    curve=(
        Evaluation(
            elapsed_s=60.0,
            step=100,
            num_tokens=5000,
            loss=2.0,
            acceptance=(0.4, 0.2, 0.1),
            tokens_per_round={"chat": 1.4},
            score=1.4,
        ),
    ),
    acceptance=ROWS,
)


def test_programs_get_every_fact(tmp_path: Path) -> None:
    """`training.json` holds all fields; what is not known is null."""
    write_card(tmp_path, FACTS)
    found = json.loads((tmp_path / FACTS_NAME).read_text())
    assert found.keys() == set(TrainingFacts.__dataclass_fields__)
    assert found["heldout_sha256"] is None
    assert found["acceptance"][0]["std_error"] == 0.0125
    assert found["acceptance"][1]["std_error"] is None
    assert found["curve"][0]["tokens_per_round"] == {"chat": 1.4}
    assert found == json.loads(json.dumps(FACTS.to_json()))


def test_people_get_a_card(tmp_path: Path) -> None:
    """Front matter that a hub reads, identities, and tables of acceptance."""
    write_card(tmp_path, FACTS)
    text = (tmp_path / CARD_NAME).read_text()
    head = text.split("---\n")[1].splitlines()
    assert head[:3] == ['license: "apache-2.0"', r'base_model: "owner/ti\"ny"', "tags:"]
    assert "- eagle3" in head
    assert "# EAGLE-3 head for tiny" in text
    assert "inputs of layers 2, 15, 27" in text
    assert "| answers of the target | 1,234, 1,200 distinct |" in text
    for fingerprint in ("a" * 64, "b" * 64, "d" * 64, "e" * 64):
        assert fingerprint in text
    assert "| chat | 0.7 | 12 | 1.25 (0.01) | 1.50 |" in text
    assert "| chat | 0.7 | 0.250 | 0.250 |" in text


def test_what_was_not_measured_is_not_claimed(tmp_path: Path) -> None:
    """No line for files that were not used, no vocabulary for a draft that has no limit."""
    write_card(
        tmp_path,
        replace(
            FACTS,
            method="layer-pruned",
            layers=(0, 29),
            draft_vocab_size=None,
            prompts_sha256=None,
        ),
    )
    text = (tmp_path / CARD_NAME).read_text()
    assert "None" not in text
    assert "| prompts |" not in text
    assert "| held-out prompts |" not in text
    assert "began as the target's layers 0, 29" in text

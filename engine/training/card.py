"""The model card of a trained drafter, and the same facts for programs. Nothing but what is known.

A fact that was not measured is `null` in `training.json` and left out of the card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.training.acceptance import AcceptanceRow
from engine.training.identity import DataFacts
from engine.training.state import Evaluation

CARD_NAME = "README.md"
FACTS_NAME = "training.json"

_TITLES = {"eagle3": "EAGLE-3 head", "layer-pruned": "Layer-pruned draft"}
_TAGS = ("speculative-decoding", "spectuned")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """How a drafter came to be and what it achieves.

    Attributes:
        method: `eagle3` or `layer-pruned`.
        target: Name of the target.
        target_fingerprint: `weights_fingerprint` of it.
        base_model: The target's hub repository, or its name where it has none.
        license: Identifier of the licence, as hubs want it.
        layers: The target's layers that it reads (`eagle3`) or started from (`layer-pruned`).
        draft_vocab_size: Tokens an EAGLE-3 head can draft; None where there is no limit.
        num_parameters: Trained parameters, which are those that are stored.
        data: The answers it learned from.
        heldout: The answers it was judged on.
        prompts_sha256: Of the file of prompts; None where that is not known.
        heldout_sha256: Of the file of held-out prompts; None where they were split off.
        seed: Seed of every random choice.
        budget_s: Seconds that training was given.
        trained_s: Seconds it took, evaluations left out.
        steps: Optimiser steps.
        num_tokens_seen: Answer tokens seen, repetitions counted.
        best_step: Step of the weights that were kept.
        peak_learning_rate: Of AdamW.
        versions: Libraries.
        curve: Evaluations during training.
        acceptance: On held-out answers.
    """

    method: str
    target: str
    target_fingerprint: str
    base_model: str
    license: str
    layers: tuple[int, ...]
    draft_vocab_size: int | None
    num_parameters: int
    data: DataFacts
    heldout: DataFacts
    prompts_sha256: str | None
    heldout_sha256: str | None
    seed: int
    budget_s: float
    trained_s: float
    steps: int
    num_tokens_seen: int
    best_step: int
    peak_learning_rate: float
    versions: Mapping[str, str]
    curve: tuple[Evaluation, ...]
    acceptance: tuple[AcceptanceRow, ...]

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {**asdict(self), "versions": dict(self.versions)}


def write_card(folder: Path, facts: TrainingFacts) -> None:
    """Write `README.md` and `training.json` into an existing folder."""
    text = json.dumps(facts.to_json(), indent=1, allow_nan=False)
    (folder / FACTS_NAME).write_text(text + "\n", encoding="utf-8")
    (folder / CARD_NAME).write_text("\n".join(_card(facts)) + "\n", encoding="utf-8")


def _card(facts: TrainingFacts) -> Iterator[str]:
    yield from _front_matter(facts)
    yield f"# {_TITLES[facts.method]} for {facts.target}"
    yield ""
    yield from _about(facts)
    yield ""
    yield "## Training"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in _training_rows(facts):
        yield f"| {name} | {value} |"
    yield ""
    yield "## Acceptance on held-out answers"
    yield ""
    yield (
        "Expected tokens per round (the target's own token included) when K tokens are drafted at "
        "the request's temperature, computed on answers that training never saw; in brackets the "
        "standard error over the answers."
    )
    yield ""
    yield from _tokens_table(facts.acceptance)
    yield ""
    yield "Accepted drafts per round, by position, at the largest K:"
    yield ""
    yield from _positions_table(facts.acceptance)


def _front_matter(facts: TrainingFacts) -> Iterator[str]:
    yield "---"
    # A JSON string is a YAML string, whatever the name holds.
    yield f"license: {json.dumps(facts.license)}"
    yield f"base_model: {json.dumps(facts.base_model)}"
    yield "tags:"
    for tag in (*_TAGS, facts.method):
        yield f"- {tag}"
    yield "---"
    yield ""


def _about(facts: TrainingFacts) -> Iterator[str]:
    listed = ", ".join(map(str, facts.layers))
    if facts.method == "eagle3":
        yield (
            f"Drafts for the target named above from its hidden states at the inputs of layers "
            f"{listed}, with a vocabulary of {facts.draft_vocab_size} tokens. The embedding is not "
            "stored: it is the target's."
        )
    else:
        yield (
            f"A small model that began as the target's layers {listed}, trained to be adjacent. "
            "Stored are these layers and the final norm; embedding and output head are the "
            "target's."
        )


def _training_rows(facts: TrainingFacts) -> Iterator[tuple[str, str]]:
    yield "method", facts.method
    yield "target weights", f"sha256 `{facts.target_fingerprint}`"
    yield "trained parameters", f"{facts.num_parameters:,}"
    data, heldout = facts.data, facts.heldout
    yield "answers of the target", f"{data.num_answers:,}, {data.num_distinct_answers:,} distinct"
    yield "answer tokens", f"{data.num_answer_tokens:,}"
    yield "answer tokens seen", f"{facts.num_tokens_seen:,}"
    yield "data", f"sha256 `{data.sha256}`"
    if facts.prompts_sha256 is not None:
        yield "prompts", f"sha256 `{facts.prompts_sha256}`"
    yield "held-out answers", f"{heldout.num_answers:,} ({heldout.num_answer_tokens:,} tokens)"
    yield "held-out data", f"sha256 `{heldout.sha256}`"
    if facts.heldout_sha256 is not None:
        yield "held-out prompts", f"sha256 `{facts.heldout_sha256}`"
    yield "steps", f"{facts.steps:,}; the weights are those of step {facts.best_step:,}"
    yield "time", f"{facts.trained_s:.0f} s of {facts.budget_s:.0f} s"
    yield "peak learning rate", f"{facts.peak_learning_rate:g}"
    yield "seed", str(facts.seed)
    yield "versions", ", ".join(f"{name} {found}" for name, found in facts.versions.items())


def _tokens_table(rows: tuple[AcceptanceRow, ...]) -> Iterator[str]:
    by_bucket: dict[tuple[str, float, int], list[str]] = {}
    for row in rows:
        error = "" if row.std_error is None else f" ({row.std_error:.2f})"
        key = (row.task, row.temperature, row.num_answers)
        by_bucket.setdefault(key, []).append(f"{row.tokens_per_round:.2f}{error}")
    count = max(row.num_speculative_tokens for row in rows)
    headings = " | ".join(f"K = {k}" for k in range(1, count + 1))
    yield f"| task | temperature | answers | {headings} |"
    yield "|---" * (3 + count) + "|"
    for (task, temperature, num_answers), cells in by_bucket.items():
        yield f"| {task} | {temperature:g} | {num_answers} | {' | '.join(cells)} |"


def _positions_table(rows: tuple[AcceptanceRow, ...]) -> Iterator[str]:
    count = max(row.num_speculative_tokens for row in rows)
    headings = " | ".join(str(position) for position in range(1, count + 1))
    yield f"| task | temperature | {headings} |"
    yield "|---" * (2 + count) + "|"
    for row in rows:
        if row.num_speculative_tokens == count:
            cells = " | ".join(f"{share:.3f}" for share in row.accepted_per_pos)
            yield f"| {row.task} | {row.temperature:g} | {cells} |"

"""The published document as a consumer meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.document import SCHEMA, PublishedConfig
from policies.types import SpeculativeConfig
from tests.documents import NGRAM, cells, document, figures

WHOLE = document(NGRAM, evidence=figures("ngram", {1: 0.3, 8: None}))


def changed(path: str, value: Any) -> str:
    """The document's JSON with one value set."""
    root = json.loads(WHOLE.to_bytes())
    *parents, last = path.split(".")
    node = root
    for key in parents:
        node = node[int(key)] if key.isdecimal() else node[key]
    node[last] = value
    return json.dumps(root)


def test_bytes_and_document_are_one() -> None:
    """Readable JSON in UTF-8 with a stable order, back and forth."""
    read = PublishedConfig.model_validate_json(WHOLE.to_bytes())

    assert read == WHOLE
    assert read.to_bytes() == WHOLE.to_bytes()
    assert json.loads(WHOLE.to_bytes())["identity"]["schema_version"] == SCHEMA == "spectuned/1"


@pytest.mark.parametrize(
    ("batch_size", "tokens"), [(1, 4), (7, 4), (8, 2), (24, 2), (31, 2), (32, 0), (10**9, 0)]
)
def test_every_batch_size_has_one_k(batch_size: int, tokens: int) -> None:
    """B14: sizes that were never measured follow the cells."""
    assert WHOLE.num_speculative_tokens(batch_size) == tokens


@pytest.mark.parametrize("batch_size", [0, -1])
def test_no_requests_have_no_k(batch_size: int) -> None:
    """B14: 0 and negative sizes are refused."""
    with pytest.raises(ValueError, match=f"batch size = {batch_size}: must be 1 or more"):
        WHOLE.num_speculative_tokens(batch_size)


def test_a_schedule_that_ends_says_so() -> None:
    """A hole is an error, not a guess."""
    finite = document(NGRAM, cells((1, 4), (8, 2))[:1])

    with pytest.raises(ValueError, match="batch size = 9: not covered"):
        finite.num_speculative_tokens(9)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("surprise", 1),
        ("identity.generation", 0),
        ("identity.on_expiry", "explode"),
        ("match.device.kind", "abacus"),
        ("envelope.method", "eagle9"),
        ("schedule.0.bs_lo", 0),
        ("schedule.0.num_speculative_tokens", -1),
        ("schedule.0.off_mode", "half"),
        ("evidence.0.status", "certain"),
        ("evidence.0.measured.gain", None),
    ],
)
def test_what_does_not_belong_is_refused(path: str, value: Any) -> None:
    """Unknown keys and values outside their range never reach a server."""
    with pytest.raises(ValidationError, match=path.split(".")[-1]):
        PublishedConfig.model_validate_json(changed(path, value))


def test_an_arm_speaks_the_words_of_the_policies() -> None:
    """Of a rejected candidate, as of everything else."""
    text = changed(
        "evidence.0.best_candidate",
        {"drafter": "draft", "num_speculative_tokens": 2, "draft_temperature": 0.7},
    )

    candidate = PublishedConfig.model_validate_json(text).evidence[0].best_candidate

    assert candidate is not None
    assert candidate.config() == SpeculativeConfig(
        drafter="draft", num_speculative_tokens=2, draft_temperature=0.7
    )

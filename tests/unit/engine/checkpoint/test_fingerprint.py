"""Fingerprints: equal for the same model, different for any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from engine.checkpoint.fingerprint import tokenizer_sha256, weights_fingerprint
from engine.errors import TokenizerError, WeightsError
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY, edit_tensors, edited_copy


def test_shards_and_one_file_have_one_fingerprint() -> None:
    """How the same weights are split into files does not matter."""
    assert weights_fingerprint(CASES / "H0_control_sharded") == weights_fingerprint(HEALTHY)


def test_provenance_does_not_count(tmp_path: Path) -> None:
    """Who wrote the folder is not part of what it computes."""
    folder = edited_copy(tmp_path / "m", config={"transformers_version": "9", "_name_or_path": "x"})
    assert weights_fingerprint(folder) == weights_fingerprint(HEALTHY)


def test_a_setting_counts(tmp_path: Path) -> None:
    """Another rotary base is another model."""
    folder = edited_copy(tmp_path / "m", config={"rope_theta": 20000.0})
    assert weights_fingerprint(folder) != weights_fingerprint(HEALTHY)


def test_one_weight_counts(tmp_path: Path) -> None:
    """One changed value gives another fingerprint."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, model__norm__weight=torch.ones(32, dtype=torch.bfloat16))
    before = weights_fingerprint(folder)
    changed = torch.ones(32, dtype=torch.bfloat16)
    changed[31] = 1.0078125
    edit_tensors(folder, model__norm__weight=changed)
    assert weights_fingerprint(folder) != before


def test_damaged_weights_are_named() -> None:
    """A truncated shard has no fingerprint."""
    with pytest.raises(WeightsError, match="H3_truncated_shard"):
        weights_fingerprint(CASES / "H3_truncated_shard")


def test_tokenizer_hash_is_that_of_the_file() -> None:
    """The tokenizer is identified by the bytes of its file."""
    wanted = hashlib.sha256((HEALTHY / "tokenizer.json").read_bytes()).hexdigest()
    assert tokenizer_sha256(HEALTHY) == wanted


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """Without a tokenizer file there is one line, not a traceback."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read"):
        tokenizer_sha256(tmp_path)

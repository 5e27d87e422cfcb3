"""Drafters without their target: what is built, what is borrowed, what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.alone import build_alone, longest_text, refusal
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec, build_drafter, layer_skip, ngram, weight_bytes
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.errors import EngineError, VocabularyMismatchError
from engine.model import Transformer
from tests.support.checkpoints import A11, H0, Weights, changed_copy, disturbed, resized

PROMPT = tuple(b"the cat sat on the mat")
OUTPUT = tuple(b", the cat sat")


def draft(folder: Path) -> DrafterSpec:
    """A draft model."""
    return DrafterSpec(name="small", method="draft_model", folder=folder)


def alone(spec: DrafterSpec, target: Path | None = None, *, min_vocab_size: int = 1) -> Drafter:
    """The drafter, in float32 on the CPU."""
    return build_alone(
        spec,
        target_folder=target,
        min_vocab_size=min_vocab_size,
        max_len=64,
        dtype=torch.float32,
        device=torch.device("cpu"),
        backend="torch",
    )


def logits(drafter: Drafter) -> torch.Tensor:
    """What a draft model says along a text."""
    assert isinstance(drafter, ModelDrafter)
    return drafter.teacher_forced_logits(PROMPT, OUTPUT)


def in_engine(folder: Path, target: Path = H0) -> torch.Tensor:
    """What the same draft says beside its target."""
    config = read_config(target)
    model = Transformer.from_weights(config, read_weights(target, config), backend="torch")
    engine = Engine(model, eos_token_ids=(), max_batch_size=1, max_len=64)
    return logits(build_drafter(draft(folder), engine, target))


def without_embedding(weights: Weights) -> Weights:
    """What a layer-pruned draft stores."""
    names = ("model.embed_tokens.weight", "lm_head.weight")
    return {name: tensor for name, tensor in weights.items() if name not in names}


def test_ngram_needs_nothing() -> None:
    """No model, no length."""
    assert isinstance(alone(ngram()), NgramDrafter)
    assert longest_text(ngram()) is None


@pytest.mark.parametrize("named", [True, False])
def test_a_draft_model_is_the_one_beside_a_target(tmp_path: Path, named: bool) -> None:
    """To the bit, whether or not the target is named."""
    folder = changed_copy(tmp_path / "draft", disturbed)

    drafter = alone(draft(folder), H0 if named else None)

    assert torch.equal(logits(drafter), in_engine(folder))
    assert drafter.num_bytes > weight_bytes(read_config(folder), torch.float32)
    assert longest_text(draft(folder)) == 256


def test_the_targets_embedding_is_lent(tmp_path: Path) -> None:
    """A draft of the target's own layers stores neither embedding nor head."""
    folder = changed_copy(tmp_path / "draft", without_embedding)

    assert torch.equal(logits(alone(draft(folder), H0)), in_engine(folder))
    with pytest.raises(EngineError, match="brings no embedding, it takes the target's"):
        alone(draft(folder))


def test_a_smaller_vocabulary_drafts_what_is_shared(tmp_path: Path) -> None:
    """Columns beyond it are impossible; ids beyond it can be read."""
    small = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    folder = changed_copy(tmp_path / "draft", resized(200), **small, vocab_size=200)

    found = logits(alone(draft(folder), min_vocab_size=260))

    assert found.shape[1] == 260
    assert bool(found[:, :200].isfinite().all())
    assert bool((found[:, 200:] == -torch.inf).all())


def test_the_targets_padded_rows_count(tmp_path: Path) -> None:
    """As beside the target: the distribution is over the rows of its embedding."""
    target = tmp_path / "target"
    shutil.copytree(H0, target)
    config = target / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 260', '"vocab_size": 320'))

    assert logits(alone(draft(H0), target)).shape[1] == 320
    config.unlink()
    assert logits(alone(draft(H0), target)).shape[1] == 260


def test_another_vocabulary_is_refused() -> None:
    """Where there is a target to compare it with."""
    with pytest.raises(VocabularyMismatchError):
        alone(draft(A11 / "draft"), A11 / "target")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (DrafterSpec(name="head", method="eagle3", folder=H0), "hidden states"),
        (layer_skip(1), "own layers"),
    ],
)
def test_drafters_of_the_targets_states_are_refused(spec: DrafterSpec, words: str) -> None:
    """With the reason, before anything is read."""
    reason = refusal(spec)
    assert reason is not None
    assert words in reason
    with pytest.raises(EngineError, match=words):
        alone(spec)

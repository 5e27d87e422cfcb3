"""Trained drafters from their folders: heads that fit, and drafts that borrow from the target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import EMBEDDING, read_weights
from engine.drafters.base import Drafter
from engine.drafters.eagle3.checkpoint import EMBEDDING as HEAD_EMBEDDING
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.factory import (
    DrafterSpec,
    build_drafter,
    from_folder,
    layer_skip,
    ngram,
    wanted_features,
)
from engine.drafters.model import ModelDrafter
from engine.engine import Engine
from engine.errors import CheckpointError, EngineError, VocabularyMismatchError, WeightsError
from engine.kernels.linear import PackedLinear
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.training.export import write_eagle3, write_pruned
from engine.training.pruned import new_draft
from engine.training.teacher import Teacher
from tests.support.checkpoints import A11, H0, Weights
from tests.support.eagle3 import random_head
from tests.support.tiny_models import random_prompt, request
from tests.tiny_llama import HIDDEN, VOCAB, write_tiny_llama

SLOTS, MAX_LEN = 2, 64
IDS = "eagle_aux_hidden_state_layer_ids"


def engine_of(folder: Path, dtype: torch.dtype = torch.float32) -> Engine:
    """An engine around a checkpoint, without end tokens."""
    config = read_config(folder)
    model = Transformer.from_weights(config, read_weights(folder, config), dtype=dtype)
    return Engine(model, eos_token_ids=(), max_batch_size=SLOTS, max_len=MAX_LEN)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A target of four layers whose output head is its embedding, or is not."""
    write_tiny_llama(tmp_path / "target", tied=request.param)
    return tmp_path / "target"


def changed(folder: Path, change: Callable[[Weights], Weights] | None = None, **keys: Any) -> Path:
    """The folder, with other keys in its configuration and other tensors."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    if change is not None:
        weights = {k: v.clone() for k, v in load_file(folder / "model.safetensors").items()}
        save_file(change(weights), folder / "model.safetensors")
    return folder


def head_in(folder: Path, target: Path, layers: tuple[int, ...] = (0, 1, 3)) -> Path:
    """A head for the target on disk."""
    folder.mkdir()
    model = engine_of(target).target
    write_eagle3(random_head(model, layers=layers), folder)
    return folder


def head_spec(folder: Path) -> DrafterSpec:
    """A head by name."""
    return DrafterSpec(name="head", method="eagle3", folder=folder)


def same_answers(engine: Engine, drafter: Drafter) -> bool:
    """Whether greedy answers with four drafts a round are the plain ones."""
    found = []
    for k, loaded in ((0, None), (4, drafter)):
        engine.load(loaded)
        asked = [request(random_prompt(i, 5 + i, VOCAB), max_tokens=30) for i in range(3)]
        sequences, _ = engine.generate(asked, batch_size=SLOTS, num_speculative_tokens=k)
        found.append([sequence.output_tokens for sequence in sequences])
    engine.load(None)
    return found[0] == found[1]


# ---------------------------------------------------------------- what lies in a folder


def test_the_method_is_read_from_the_folder(target: Path, tmp_path: Path) -> None:
    """A head says so in its configuration; every other model drafts as a model."""
    head = head_in(tmp_path / "head", target)

    assert from_folder("a", head) == DrafterSpec(name="a", method="eagle3", folder=head)
    assert from_folder("b", target) == DrafterSpec(name="b", method="draft_model", folder=target)
    assert from_folder("a", head).parameters() == {"model": str(head)}
    with pytest.raises(CheckpointError, match="nowhere"):
        from_folder("c", tmp_path / "nowhere")


def test_the_states_of_all_heads_are_wanted_together(target: Path, tmp_path: Path) -> None:
    """Ascending, without repeats; what cannot be read or built wants nothing."""
    specs = [
        head_spec(head_in(tmp_path / "one", target, (0, 1, 3))),
        head_spec(head_in(tmp_path / "two", target, (1, 2, 3))),
        head_spec(changed(head_in(tmp_path / "deep", target), eagle_config={IDS: [0, 2, 4]})),
        head_spec(changed(head_in(tmp_path / "odd", target), eagle_config={IDS: [3, 2, 1]})),
        head_spec(tmp_path / "nowhere"),
        DrafterSpec(name="nameless", method="eagle3"),
        ngram(),
        layer_skip(2),
        DrafterSpec(name="draft", method="draft_model", folder=target),
    ]

    assert wanted_features(specs, 4) == (0, 1, 2, 3)
    assert wanted_features(specs[:1], 4) == (0, 1, 3)
    assert wanted_features(specs[2:], 4) == ()
    assert wanted_features(specs[2:3], 5) == (0, 2, 4)


# ---------------------------------------------------------------- heads


def test_a_head_is_built_for_the_slots(target: Path, tmp_path: Path) -> None:
    """With the target's own embedding, packed layers, and plain output."""
    engine = engine_of(target)

    drafter = build_drafter(from_folder("head", head_in(tmp_path / "head", target)), engine, target)

    assert isinstance(drafter, Eagle3Drafter)
    assert (drafter.name, drafter.feature_layers) == ("head", (0, 1, 3))
    assert drafter._embedding is engine.target.embedding
    assert isinstance(drafter.head.lm_head, PackedLinear)
    assert (drafter.cache.num_slots, drafter.cache.max_len) == (SLOTS, MAX_LEN)
    assert same_answers(engine, drafter)


def test_a_head_in_bfloat16_follows_the_target(target: Path, tmp_path: Path) -> None:
    """Weights, states and cache have the target's type."""
    engine = engine_of(target, torch.bfloat16)

    drafter = build_drafter(head_spec(head_in(tmp_path / "head", target)), engine, target)

    assert isinstance(drafter, Eagle3Drafter)
    assert drafter.cache.keys.dtype == drafter.head.norm.weight.dtype == torch.bfloat16
    engine.load(drafter)
    sequences, counters = engine.generate(
        [request((1, 2, 3), max_tokens=20)], batch_size=1, num_speculative_tokens=3
    )
    assert len(sequences[0].output_tokens) == 20
    assert counters.num_draft_tokens > 0


def test_a_head_may_bring_its_embedding(target: Path, tmp_path: Path) -> None:
    """It is used in place of the target's, and it counts."""
    engine = engine_of(target)
    folder = head_in(tmp_path / "head", target)
    borrowing = build_drafter(head_spec(folder), engine, target)
    own = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
    changed(folder, lambda weights: {**weights, HEAD_EMBEDDING: own})

    drafter = build_drafter(head_spec(folder), engine, target)

    assert isinstance(drafter, Eagle3Drafter)
    assert torch.equal(drafter._embedding, own)
    assert drafter.num_bytes == borrowing.num_bytes + 4 * VOCAB * HIDDEN
    assert same_answers(engine, drafter)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"vocab_size": VOCAB + 1}, EngineError, f"vocab_size = {VOCAB + 1}, the target's is 64"),
        ({"target_hidden_size": 40}, EngineError, "target_hidden_size = 40, the target's is 32"),
        (
            {"eagle_config": {IDS: [1, 2, 4]}},
            EngineError,
            "reads the input of layer 4, the target has 4 layers",
        ),
        (
            {"max_position_embeddings": 63},
            CheckpointError,
            "supports 63 positions, the target is served with 64",
        ),
        (
            {"hidden_size": 16, "target_hidden_size": 32},
            WeightsError,
            r"config\.json asks for",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    target: Path, tmp_path: Path, keys: dict[str, Any], error: type[EngineError], message: str
) -> None:
    """With its folder, its value and the target's."""
    folder = changed(head_in(tmp_path / "head", target), **keys)

    with pytest.raises(error, match=rf"head.*{message}"):
        build_drafter(head_spec(folder), engine_of(target), target)


def test_a_narrow_head_needs_an_embedding_of_its_own(target: Path, tmp_path: Path) -> None:
    """The target's rows are too wide for it; with its own it drafts."""
    engine, folder = engine_of(target), tmp_path / "narrow"
    folder.mkdir()
    wide = random_head(engine.target, layers=(0, 1, 3)).config
    decoder = replace(wide.decoder, hidden_size=16)
    narrow = type(random_head(engine.target, layers=(0, 1, 3)))(replace(wide, decoder=decoder))
    write_eagle3(narrow, folder)

    with pytest.raises(WeightsError, match=r"brings no embedding.* 32 wide instead of 16"):
        build_drafter(head_spec(folder), engine, target)

    changed(folder, lambda weights: {**weights, HEAD_EMBEDDING: torch.randn(VOCAB, 16)})
    assert same_answers(engine, build_drafter(head_spec(folder), engine, target))


def test_the_budget_counts_all_that_a_head_holds(target: Path, tmp_path: Path) -> None:
    """Weights, keys, values and states: one byte too little is refused with both figures."""
    engine, folder = engine_of(target), head_in(tmp_path / "head", target)
    needed = build_drafter(head_spec(folder), engine, target).num_bytes

    drafter = build_drafter(head_spec(folder), engine, target, budget_bytes=needed)

    assert drafter.num_bytes == needed
    head = random_head(engine.target, layers=(0, 1, 3))
    per_token = KvCache.bytes_per_token(head.config.decoder, torch.float32) + 3 * HIDDEN * 4
    weights = 4 * sum(parameter.numel() for parameter in head.parameters())
    assert needed == weights + SLOTS * MAX_LEN * per_token
    with pytest.raises(EngineError, match=r"needs 0\.\d MiB for weights and cache, has 0\.\d MiB"):
        build_drafter(head_spec(folder), engine, target, budget_bytes=needed - 1)


# ---------------------------------------------------------------- pruned drafts


def pruned_in(folder: Path, target: Path) -> Path:
    """A draft of the target's first and last layer as training leaves it."""
    folder.mkdir()
    config = read_config(target)
    teacher = Teacher.from_weights(config, read_weights(target, config), MAX_LEN)
    write_pruned(new_draft(replace(config, num_layers=2), teacher, (0, 3)), target, folder)
    return folder


def draft_spec(folder: Path) -> DrafterSpec:
    """A draft model by name."""
    return DrafterSpec(name="pruned", method="draft_model", folder=folder)


def test_a_pruned_draft_borrows_embedding_and_head(target: Path, tmp_path: Path) -> None:
    """The same objects, not copies, and no tokenizer is asked for; the output stays plain."""
    engine, folder = engine_of(target), pruned_in(tmp_path / "pruned", target)

    drafter = build_drafter(draft_spec(folder), engine, target)

    assert isinstance(drafter, ModelDrafter)
    assert drafter.model.embedding is engine.target.embedding
    assert drafter.model.head is engine.target.head
    assert same_answers(engine, drafter)


def test_a_pruned_draft_of_another_width_is_refused(target: Path, tmp_path: Path) -> None:
    """Its embedding cannot be the target's; both shapes are named."""
    folder = pruned_in(tmp_path / "pruned", target)
    other = engine_of(H0)

    with pytest.raises(WeightsError, match=r"is to be the target's, whose shape is \[260, 32\]"):
        build_drafter(draft_spec(folder), other, H0)


def test_a_draft_with_an_embedding_must_show_its_tokenizer(tmp_path: Path) -> None:
    """Only what borrows the target's rows is known to share its vocabulary."""
    bare = tmp_path / "bare"
    shutil.copytree(H0, bare)
    (bare / "tokenizer.json").unlink()
    other = DrafterSpec(name="other", method="draft_model", folder=A11 / "draft")

    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        build_drafter(draft_spec(bare), engine_of(H0), H0)
    with pytest.raises(VocabularyMismatchError, match=r"id 97: 'e' in the draft"):
        build_drafter(other, engine_of(A11 / "target"), A11 / "target")


def test_an_assembled_draft_does_not_share(tmp_path: Path) -> None:
    """A whole model has rows of its own, equal or not, so it is compared by its tokenizer."""
    engine = engine_of(H0)

    drafter = build_drafter(draft_spec(H0), engine, H0)

    assert isinstance(drafter, ModelDrafter)
    assert EMBEDDING in read_weights(H0, read_config(H0))
    assert drafter.model.embedding is not engine.target.embedding
    assert drafter.model.head is not engine.target.head

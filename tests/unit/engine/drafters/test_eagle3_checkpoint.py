"""Reading an EAGLE-3 head from disk: what is taken, and every refusal by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config, read_eagle3_config
from engine.drafters.eagle3.checkpoint import EMBEDDING, read_head
from engine.drafters.eagle3.head import Eagle3Head
from engine.errors import UnsupportedModelError, WeightsError
from engine.training.export import write_eagle3
from tests.support.checkpoints import Weights
from tests.support.training import VOCAB, tiny_head, tiny_teacher

IDS = [1, 2, 5, 6, 7, 9, 11]
Change = Callable[[Weights], Weights]


def stored(folder: Path, change: Change = lambda weights: weights, ids: list[int] = IDS) -> Path:
    """A head on disk, with changed tensors."""
    folder.mkdir()
    write_eagle3(tiny_head(tiny_teacher(), torch.tensor(ids)), folder)
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(weights), path)
    return folder


def read(folder: Path) -> tuple[Eagle3Head, Tensor | None]:
    """The head and its embedding."""
    return read_head(folder, read_eagle3_config(folder))


def maps(ids: list[int], marked: list[int] | None = None) -> Change:
    """A vocabulary: the target id of every draft id, and the ids that t2d marks."""
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids if marked is None else marked] = True
    return lambda weights: {**weights, "d2t": torch.tensor(ids) - torch.arange(7), "t2d": t2d}


def without(*names: str) -> Change:
    """Tensors left out."""
    return lambda weights: {k: v for k, v in weights.items() if k not in names}


def cast(name: str, dtype: torch.dtype) -> Change:
    """One tensor in another type."""
    return lambda weights: {**weights, name: weights[name].to(dtype)}


def test_a_head_reads_back(tmp_path: Path) -> None:
    """Every tensor in float32, maps as they are, nothing to train, and no embedding of its own."""
    written = tiny_head(tiny_teacher(), torch.tensor(IDS))
    write_eagle3(written, tmp_path)

    head, embedding = read(tmp_path)

    assert embedding is None
    assert head.target_ids.tolist() == IDS
    assert head.t2d.nonzero().flatten().tolist() == IDS
    assert not any(parameter.requires_grad for parameter in head.parameters())
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    for name, tensor in written.state_dict().items():
        kept = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(head.state_dict()[name], kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_embedding_that_comes_with_the_head_is_handed_out(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """In the type of the file, under the name without a prefix."""
    own = torch.arange(VOCAB * 16, dtype=dtype).view(VOCAB, 16)

    _, embedding = read(stored(tmp_path / "head", lambda weights: {**weights, EMBEDDING: own}))

    assert embedding is not None
    assert torch.equal(embedding, own)
    assert embedding.dtype == dtype


@pytest.mark.parametrize("left_out", [("d2t", "t2d"), ("t2d",), ("d2t",), ()])
def test_a_head_of_the_whole_vocabulary_needs_no_maps(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    """Without them every draft id is a target id."""
    folder = stored(tmp_path / "head", without(*left_out), ids=list(range(VOCAB)))

    head, _ = read(folder)

    assert head.target_ids.tolist() == list(range(VOCAB))
    assert bool(head.t2d.all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (maps([1, 2, 5, 6, 7, 9, 12], IDS), "d2t leads outside the 12 ids"),
        (maps([-1, 2, 5, 6, 7, 9, 11], IDS), "d2t leads outside the 12 ids"),
        (maps([1, 2, 5, 5, 7, 9, 11]), "twice or out of order"),
        (maps([2, 1, 5, 6, 7, 9, 11]), "twice or out of order"),
        (maps(IDS, [1, 2, 5, 6, 7, 9, 10]), "t2d marks other ids than d2t leads to"),
        (maps(IDS, [1, 2, 5, 6, 7, 9]), "t2d marks other ids"),
        (maps(IDS, [0, *IDS]), "t2d marks other ids"),
        (cast("d2t", torch.int32), "d2t must be int64 and t2d bool, they are torch.int32"),
        (cast("d2t", torch.float32), "d2t must be int64 and t2d bool, they are torch.float32"),
        (cast("t2d", torch.int64), "d2t must be int64 and t2d bool.* and torch.int64"),
    ],
)
def test_maps_that_make_no_sense_are_refused(tmp_path: Path, change: Change, message: str) -> None:
    """A wrong map would draft other tokens than were learnt; the folder is named."""
    with pytest.raises(WeightsError, match=rf"head: .*{message}"):
        read(stored(tmp_path / "head", change))


def test_target_ids_in_place_of_offsets_are_refused(tmp_path: Path) -> None:
    """A map that holds what it should lead to leads beyond the vocabulary."""
    folder = stored(tmp_path / "head", lambda weights: {**weights, "d2t": torch.tensor(IDS)})

    with pytest.raises(WeightsError, match="d2t leads outside the 12 ids of the target"):
        read(folder)


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_a_part_of_the_vocabulary_needs_both_maps(tmp_path: Path, name: str) -> None:
    """The first ids are not a guess worth making."""
    with pytest.raises(WeightsError, match=f"tensor {name} is missing"):
        read(stored(tmp_path / "head", without(name)))


@pytest.mark.parametrize(
    "name", ["fc.weight", "midlayer.hidden_norm.weight", "lm_head.weight", "norm.weight"]
)
def test_a_missing_tensor_is_refused(tmp_path: Path, name: str) -> None:
    """By name."""
    with pytest.raises(WeightsError, match=f"tensor {name} is missing"):
        read(stored(tmp_path / "head", without(name)))


@pytest.mark.parametrize("name", ["layers.0.mlp.up_proj.weight", "midlayer.self_attn.q_proj.bias"])
def test_a_tensor_without_a_use_is_refused(tmp_path: Path, name: str) -> None:
    """What is not computed must not be dropped in silence."""
    with pytest.raises(UnsupportedModelError, match=rf"model\.safetensors: tensor {name}"):
        read(stored(tmp_path / "head", lambda weights: {**weights, name: torch.zeros(2)}))


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "t2d", EMBEDDING])
def test_a_wrong_shape_is_refused(tmp_path: Path, name: str) -> None:
    """With both shapes."""

    def reshaped(weights: Weights) -> Weights:
        old = weights.get(name, torch.zeros(VOCAB, 16))
        return {**weights, name: torch.cat((old, old[:1]))}

    with pytest.raises(WeightsError, match=rf"tensor {name} has shape .*config.json asks for"):
        read(stored(tmp_path / "head", reshaped))


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.mlp.up_proj.weight", "norm.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    """A broken file is found before it drafts."""

    def broken(weights: Weights) -> Weights:
        weights[name].view(-1)[-1] = value
        return weights

    with pytest.raises(WeightsError, match=f"tensor {name} holds values that are not finite"):
        read(stored(tmp_path / "head", broken))


@pytest.mark.parametrize("name", ["fc.weight", "lm_head.weight", EMBEDDING])
def test_weights_that_are_whole_numbers_are_refused(tmp_path: Path, name: str) -> None:
    """Quantised heads would be read as if their codes were weights."""

    def quantised(weights: Weights) -> Weights:
        old = weights.get(name, torch.zeros(VOCAB, 16))
        return {**weights, name: old.to(torch.int8)}

    with pytest.raises(UnsupportedModelError, match=rf"tensor {name} has dtype torch\.int8"):
        read(stored(tmp_path / "head", quantised))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """Without their scales they are no weights; the message names the tensor."""
    with pytest.raises(UnsupportedModelError, match=r"tensor fc\.weight has dtype"):
        read(stored(tmp_path / "head", cast("fc.weight", dtype)))


def test_shards_are_read_as_one_head(tmp_path: Path) -> None:
    """With an index, as larger heads are published."""
    folder = stored(tmp_path / "head")
    weights = load_file(folder / "model.safetensors")
    whole, _ = read(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / shard)
    listed = {name: shard for shard, held in parts.items() for name in held}
    index = str({"weight_map": listed}).replace("'", '"')
    (folder / "model.safetensors.index.json").write_text(index)

    head, _ = read(folder)

    for name, tensor in whole.state_dict().items():
        assert torch.equal(head.state_dict()[name], tensor)


def test_the_configuration_gives_the_shapes(tmp_path: Path) -> None:
    """A head read with the configuration of a wider target does not fit."""
    folder = stored(tmp_path / "head")
    config = read_eagle3_config(folder)
    wider = Eagle3Config(
        decoder=config.decoder,
        draft_vocab_size=config.draft_vocab_size,
        target_hidden_size=32,
        feature_layers=config.feature_layers,
        norm_before_residual=False,
    )

    with pytest.raises(WeightsError, match=r"fc\.weight has shape \[16, 48\].*\[16, 96\]"):
        read_head(folder, wider)

"""A layer-skip drafter written as a draft folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.layer_skip_export import write_layer_skip
from engine.errors import CheckpointError, WeightsError
from tests.tiny_llama import tiny_tensors, write_tiny_llama

LAYERS = 4


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_draft_is_the_target_with_fewer_layers(
    tmp_path: Path, num_layers: int, tied: bool, num_shards: int
) -> None:
    """Tensors are bit-equal to those of a target built with N layers; nothing else is written."""
    target = write_tiny_llama(
        tmp_path / "target", num_layers=LAYERS, tied=tied, num_shards=num_shards
    )
    out = tmp_path / "new" / "draft"

    write_layer_skip(tmp_path / "target", num_layers, out)

    draft = load_file(out / "model.safetensors")
    assert draft.keys() == tiny_tensors(num_layers, tied=tied).keys()
    assert all(torch.equal(tensor, target[name]) for name, tensor in draft.items())
    expected = json.loads((tmp_path / "target" / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == {
        **expected,
        "num_hidden_layers": num_layers,
    }
    assert sorted(path.name for path in out.parent.iterdir()) == ["draft"]


def test_tokenizer_files_are_copied_as_they_are(tmp_path: Path) -> None:
    """Tokenizer, template and generation settings come along; other files stay behind."""
    write_tiny_llama(tmp_path / "target")
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "README.md"):
        (tmp_path / "target" / name).write_text(f"text of {name}")

    write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")

    assert (tmp_path / "draft" / "tokenizer.json").read_text() == "text of tokenizer.json"
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_the_weights_are_as_readable_as_the_rest(tmp_path: Path) -> None:
    """A server that runs as another user can read the weights if it can read the config."""
    write_tiny_llama(tmp_path / "target")
    write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")
    modes = {path.stat().st_mode for path in (tmp_path / "draft").iterdir()}
    assert len(modes) == 1


def test_the_head_of_a_tied_target_is_not_copied(tmp_path: Path) -> None:
    """A head stored beside a tied embedding is left out: the draft's head is its embedding."""
    tensors = write_tiny_llama(tmp_path / "target", tied=True)
    stored = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(stored, tmp_path / "target" / "model.safetensors")

    write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")

    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")


def test_layer_types_are_cut_to_the_kept_layers(tmp_path: Path) -> None:
    """A per-layer list in the configuration keeps one entry per kept layer."""
    write_tiny_llama(tmp_path / "target", num_layers=LAYERS)
    path = tmp_path / "target" / "config.json"
    config = {**json.loads(path.read_text()), "layer_types": ["full_attention"] * LAYERS}
    path.write_text(json.dumps(config))

    write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")

    draft = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert draft["layer_types"] == ["full_attention"] * 2


@pytest.mark.parametrize("num_layers", [-1, 0, LAYERS, LAYERS + 1])
def test_a_draft_must_be_smaller_than_the_target(tmp_path: Path, num_layers: int) -> None:
    """N outside 1..layers-1 is refused with the range, and nothing is written."""
    write_tiny_llama(tmp_path / "target", num_layers=LAYERS)
    with pytest.raises(CheckpointError, match=f"num_layers = {num_layers}: .*keeps 1 to 3 of"):
        write_layer_skip(tmp_path / "target", num_layers, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_an_existing_folder_is_used_only_when_empty(tmp_path: Path) -> None:
    """Files already there are never overwritten; an empty folder is filled."""
    write_tiny_llama(tmp_path / "target")
    out = tmp_path / "draft"
    out.mkdir()
    write_layer_skip(tmp_path / "target", 2, out)
    before = (out / "model.safetensors").read_bytes()

    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        write_layer_skip(tmp_path / "target", 3, out)
    assert (out / "model.safetensors").read_bytes() == before


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in the middle leaves neither a folder nor scratch files."""
    write_tiny_llama(tmp_path / "target")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("engine.checkpoint.model_folder.save_file", full_disk)
    with pytest.raises(CheckpointError, match=r"cannot be written .*No space left"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    """A target with nothing but a pickle is refused by the name of the pickle."""
    write_tiny_llama(tmp_path / "target")
    (tmp_path / "target" / "model.safetensors").rename(tmp_path / "target" / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin: pickle weights .* never opened"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """The error says which shard is not there."""
    write_tiny_llama(tmp_path / "target", num_shards=3)
    (tmp_path / "target" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"shard model-00002-of-00003\.safetensors is missing"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    """A cut file is an error of ours with its name, not one of the reader's."""
    write_tiny_llama(tmp_path / "target")
    path = tmp_path / "target" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a usable safetensors file"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")


def test_a_pointer_in_place_of_weights_is_named(tmp_path: Path) -> None:
    """A Git LFS pointer is recognised as such."""
    write_tiny_llama(tmp_path / "target")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tmp_path / "target" / "model.safetensors").write_text(pointer)
    with pytest.raises(WeightsError, match="is a Git LFS pointer"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")


@pytest.mark.parametrize(
    ("dropped", "named"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj.weight"),
        ("model.layers.1.", "model.layers.1.input_layernorm.weight"),
        ("model.layers.", "model.layers.0.input_layernorm.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, dropped: str, named: str) -> None:
    """A draft without its norm, head or a kept layer would draft nonsense: refused."""
    tensors = write_tiny_llama(tmp_path / "target", tied=False)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(dropped)}
    save_file(kept, tmp_path / "target" / "model.safetensors")
    with pytest.raises(WeightsError, match=f"tensor {named} is missing"):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        ({}, "weight_map is missing or empty"),
        ({"lm_head.weight": "../other.safetensors"}, "is not a plain file name"),
    ],
)
def test_an_index_may_name_only_files_of_its_folder(
    tmp_path: Path, weight_map: dict[str, str], problem: str
) -> None:
    """An index that names nothing, or leads out of the folder, is refused."""
    write_tiny_llama(tmp_path / "target")
    index = tmp_path / "target" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=problem):
        write_layer_skip(tmp_path / "target", 2, tmp_path / "draft")

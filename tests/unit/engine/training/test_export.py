"""Finished drafters on disk: the public layouts, exact weights, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.config import read_config
from engine.checkpoint.eagle3_config import read_eagle3_config
from engine.checkpoint.model_folder import new_folder
from engine.checkpoint.rope_config import LinearScaling, Llama3Scaling, RopeScaling
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD, read_weights
from engine.errors import CheckpointError, WeightsError
from engine.training.export import assemble, eagle3_values, write_eagle3, write_pruned
from engine.training.pruned import PrunedDraft, new_draft
from engine.training.teacher import Teacher
from tests.support.training import tiny_head, tiny_teacher
from tests.tiny_llama import write_tiny_llama

LLAMA3 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)


def test_eagle3_layout(tmp_path: Path) -> None:
    """Public tensor names in bfloat16, maps as they are, no embedding; the config reads back."""
    head = tiny_head(tiny_teacher())
    with new_folder(tmp_path / "out") as folder:
        write_eagle3(head, folder)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored.keys() == head.state_dict().keys()
    for name, tensor in stored.items():
        expected = head.state_dict()[name]
        assert torch.equal(tensor, expected.to(tensor.dtype))
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    assert stored["fc.weight"].dtype == stored["midlayer.mlp.up_proj.weight"].dtype
    assert stored["fc.weight"].dtype == torch.bfloat16
    assert read_eagle3_config(tmp_path / "out") == replace(
        head.config, decoder=replace(head.config.decoder, tie_word_embeddings=False)
    )
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["architectures"] == ["LlamaForCausalLMEagle3"]
    assert values["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert values["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "use_aux_hidden_state": True,
    }


@pytest.mark.parametrize("scaling", [None, LinearScaling(factor=2.0), LLAMA3])
@pytest.mark.parametrize("ends", [(), (3,), (3, 5)])
def test_eagle3_config_round_trip(
    tmp_path: Path, scaling: RopeScaling | None, ends: tuple[int, ...]
) -> None:
    """Rotary scaling and end tokens survive, in the spelling of either generation of readers."""
    config = tiny_head(tiny_teacher()).config
    decoder = replace(
        config.decoder,
        rope_scaling=scaling,
        eos_token_ids=ends,
        bos_token_id=1,
        tie_word_embeddings=False,
    )
    config = replace(config, decoder=decoder)
    (tmp_path / "config.json").write_text(json.dumps(eagle3_values(config)))
    assert read_eagle3_config(tmp_path) == config


def pruned(target: Path, out: Path, kept: tuple[int, ...] = (0, 3)) -> PrunedDraft:
    """A draft of a tiny target, written."""
    config = read_config(target)
    teacher = Teacher.from_weights(config, read_weights(target, config), 64)
    draft = new_draft(replace(config, num_layers=len(kept)), teacher, kept)
    with new_folder(out) as folder:
        write_pruned(draft, target, folder)
    return draft


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_pruned_draft_becomes_a_whole_model(tmp_path: Path, tied: bool, num_shards: int) -> None:
    """Stored are the trained parts; assembled, the target's embedding and head are with them."""
    target = tmp_path / "target"
    lent = write_tiny_llama(target, tied=tied, num_shards=num_shards)
    (target / "tokenizer.json").write_text("{}")
    draft = pruned(target, tmp_path / "draft")
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert stored.keys() == draft.state_dict().keys()
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert not (tmp_path / "draft" / "tokenizer.json").exists()

    assemble(tmp_path / "draft", target, tmp_path / "whole")

    config = read_config(tmp_path / "whole")
    assert config == replace(read_config(target), num_layers=2)
    weights = read_weights(tmp_path / "whole", config)
    assert torch.equal(weights[EMBEDDING], lent[EMBEDDING])
    assert (OUTPUT_HEAD in weights) is not tied
    for name, tensor in stored.items():
        assert torch.equal(weights[name], tensor)
    assert (tmp_path / "whole" / "tokenizer.json").read_text() == "{}"


def test_another_targets_embedding_is_refused(tmp_path: Path) -> None:
    """A target of another width or vocabulary would give a model that cannot run."""
    write_tiny_llama(tmp_path / "target")
    pruned(tmp_path / "target", tmp_path / "draft")
    other = tmp_path / "other"
    weights = write_tiny_llama(other)
    weights[EMBEDDING] = weights[EMBEDDING][:-1].clone()
    save_file(weights, other / "model.safetensors")
    with pytest.raises(WeightsError, match="was not made for"):
        assemble(tmp_path / "draft", other, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_what_is_missing_or_foreign_is_named(tmp_path: Path) -> None:
    """A layer that is not there, and a tensor that belongs to something else."""
    write_tiny_llama(tmp_path / "target")
    pruned(tmp_path / "target", tmp_path / "draft")
    path = tmp_path / "draft" / "model.safetensors"
    stored = load_file(path)
    less = {name: t for name, t in stored.items() if name != "model.layers.1.mlp.up_proj.weight"}
    save_file(less, path)
    with pytest.raises(WeightsError, match=r"draft: tensor model\.layers\.1\.mlp\.up_proj"):
        assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "whole")
    save_file({**stored, "fc.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"holds fc\.weight"):
        assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "whole")


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a folder nor scratch files, and what was there is left alone."""

    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(CheckpointError, match="not an empty folder"), new_folder(tmp_path / "mine"):
        pytest.fail("the block was entered")
    assert (tmp_path / "mine" / "file").read_text() == "x"

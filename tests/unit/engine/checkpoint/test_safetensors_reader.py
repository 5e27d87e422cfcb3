"""Reading weights: complete, exact and finite, or refused with the name of what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import expected_shapes, read_weights
from engine.errors import CheckpointError, UnsupportedModelError, WeightsError
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY, QWEN, edit_tensors, edited_copy

LOADABLE = [
    "A11_same_size_other_vocab/draft",
    "A11_same_size_other_vocab/target",
    "H0_control_sharded",
    "H10_rope_llama3",
    "H11_rope_linear_old_key",
    "H15_head_dim",
    "H16_qkv_bias",
    "H19_window_switched_off",
    "H25_template_in_own_file",
    "H7_tied_no_head",
]


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a folder under its own configuration."""
    return read_weights(folder, read_config(folder))


@pytest.mark.parametrize("case", LOADABLE)
def test_healthy_cases_give_every_tensor_as_stored(case: str) -> None:
    """Every tensor is there, in the dtype and with the values on disk."""
    folder = CASES / case
    weights = load(folder)
    on_disk: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        on_disk |= load_file(shard)
    assert weights.keys() == expected_shapes(read_config(folder)).keys() == on_disk.keys()
    for name, tensor in weights.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, on_disk[name])


def test_shards_and_one_file_give_the_same_weights() -> None:
    """How a model is split does not matter."""
    sharded, single = load(CASES / "H0_control_sharded"), load(HEALTHY)
    assert sharded.keys() == single.keys()
    assert all(torch.equal(sharded[name], single[name]) for name in single)


def test_case_h1_names_the_missing_shard() -> None:
    """A shard that is not there is named; nothing is loaded in its place."""
    with pytest.raises(WeightsError, match=r"model-00002-of-00003\.safetensors is missing"):
        load(CASES / "H1_missing_shard")


def test_case_h3_names_the_truncated_shard() -> None:
    """A shard shorter than its header says is named."""
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors: damaged"):
        load(CASES / "H3_truncated_shard")


def test_case_h4_recognises_the_pointer() -> None:
    """A Git LFS pointer in place of weights is called one."""
    with pytest.raises(WeightsError, match=r"model\.safetensors: is a Git LFS pointer"):
        load(CASES / "H4_lfs_pointer")


def test_case_h27_never_opens_the_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle weights are refused and the code in them does not run."""
    folder = tmp_path / "model"
    shutil.copytree(CASES / "H27_pickle_weights", folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin: pickle"):
        load(folder)
    assert not list(tmp_path.rglob("H27_CANARY_RAN"))


def test_pickle_beside_safetensors_is_ignored(tmp_path: Path) -> None:
    """A folder with both formats loads from safetensors."""
    folder = edited_copy(tmp_path / "m")
    shutil.copy(CASES / "H27_pickle_weights" / "pytorch_model.bin", folder)
    assert load(folder).keys() == load(HEALTHY).keys()


def test_case_h20_weights_are_refused_by_dtype_or_scale(tmp_path: Path) -> None:
    """Without its quantisation settings the fp8 folder is still refused, by its tensors."""
    folder = edited_copy(
        tmp_path / "m", base=CASES / "H20_fp8_block_scales", without=("quantization_config",)
    )
    with pytest.raises(UnsupportedModelError, match="weight_scale_inv"):
        load(folder)


def test_case_h22_weights_are_called_a_draft_head(tmp_path: Path) -> None:
    """A draft head under the name of a whole model is recognised by its tensors."""
    folder = edited_copy(
        tmp_path / "m",
        base=CASES / "H22_draft_head_without_lm_head",
        config={"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None},
    )
    with pytest.raises(UnsupportedModelError, match="belongs to a draft head"):
        load(folder)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    """A tensor that the architecture needs is never made up."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, lm_head__weight=None)
    with pytest.raises(WeightsError, match=r"tensor lm_head\.weight is missing"):
        load(folder)


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    """A shape that config.json does not ask for is refused."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, model__norm__weight=torch.ones(31))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[31\].*\[32\]"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight",
        "model.layers.0.mlp.gate_proj.lora_A.weight",
    ],
)
def test_tensors_without_a_place_are_refused(tmp_path: Path, name: str) -> None:
    """A tensor that would be left unused changes the model, so it is refused by name."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, **{name: torch.ones(32)})
    with pytest.raises(UnsupportedModelError, match=name):
        load(folder)


def test_missing_declared_bias_is_named(tmp_path: Path) -> None:
    """The Qwen2 layout without its biases is incomplete."""
    folder = edited_copy(tmp_path / "m", base=QWEN)
    edit_tensors(folder, model__layers__1__self_attn__k_proj__bias=None)
    with pytest.raises(WeightsError, match=r"layers\.1\.self_attn\.k_proj\.bias is missing"):
        load(folder)


def test_stored_rotary_tables_are_ignored(tmp_path: Path) -> None:
    """Rotary tables saved by older writers are recomputed, so they may be there."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    assert load(folder).keys() == load(HEALTHY).keys()


def test_tied_model_with_a_copy_of_the_embedding_as_head(tmp_path: Path) -> None:
    """A head equal to the embedding is redundant and left out."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H7_tied_no_head")
    edit_tensors(folder, lm_head__weight=load(folder)["model.embed_tokens.weight"].clone())
    assert "lm_head.weight" not in load(folder)


def test_tied_model_with_another_head_is_refused(tmp_path: Path) -> None:
    """A tied model with a head of its own contradicts itself."""
    folder = edited_copy(tmp_path / "m", config={"tie_word_embeddings": True})
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_refused(tmp_path: Path, value: float) -> None:
    """One value that is not finite spoils every logit and is refused at load."""
    folder = edited_copy(tmp_path / "m")
    tensor = load(folder)["model.layers.1.mlp.up_proj.weight"].clone()
    tensor[3, 5] = value
    edit_tensors(folder, model__layers__1__mlp__up_proj__weight=tensor)
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj\.weight holds values"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floating_dtypes_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    """Tensors come in the dtype they are stored in, mixed ones too."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, model__norm__weight=torch.full((32,), 1.5, dtype=dtype))
    weights = load(folder)
    assert weights["model.norm.weight"].dtype == dtype
    assert weights["lm_head.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """Integers and 8-bit floats are quantised values, not weights."""
    folder = edited_copy(tmp_path / "m")
    edit_tensors(folder, model__norm__weight=torch.ones(32).to(dtype))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight has dtype"):
        load(folder)


def test_weights_outlive_a_change_of_the_file(tmp_path: Path) -> None:
    """Overwriting the file in place does not change weights that are already loaded."""
    folder = edited_copy(tmp_path / "m")
    before = load(folder)
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-64, 2)
        file.write(b"\x00" * 64)
    after = load(HEALTHY)
    assert all(torch.equal(before[name], after[name]) for name in after)


def test_index_may_not_point_outside_the_folder(tmp_path: Path) -> None:
    """A shard name with a path in it would read files from elsewhere."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H0_control_sharded")
    index = {"weight_map": {"lm_head.weight": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="not a plain file name"):
        load(folder)


def test_index_may_not_name_a_pickle(tmp_path: Path) -> None:
    """An index that names a pickle does not get it opened."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H27_pickle_weights")
    index = {"weight_map": {"lm_head.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is not a safetensors file"):
        load(folder)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}', "x"])
def test_malformed_index_is_named(tmp_path: Path, content: str) -> None:
    """An index that lists nothing is refused with its name."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H0_control_sharded")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load(folder)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Two values for one tensor: it is unclear which one is meant."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H0_control_sharded")
    first, second = sorted(folder.glob("*.safetensors"))
    tensors = load_file(first)
    name = next(iter(load_file(second)))
    save_file({**tensors, name: torch.zeros(1)}, first)
    with pytest.raises(WeightsError, match="is also in"):
        load(folder)


def test_single_file_beside_an_unrelated_index_is_refused(tmp_path: Path) -> None:
    """Left-overs of another version of the model make the folder ambiguous."""
    folder = edited_copy(tmp_path / "m", base=CASES / "H0_control_sharded")
    shutil.copy(HEALTHY / "model.safetensors", folder)
    with pytest.raises(WeightsError, match="remove the one not meant"):
        load(folder)


def test_folder_without_weights_is_named(tmp_path: Path) -> None:
    """A folder with nothing to read says which files were looked for."""
    config = read_config(HEALTHY)
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        read_weights(tmp_path, config)
    with pytest.raises(WeightsError, match="no such folder"):
        read_weights(tmp_path / "absent", config)

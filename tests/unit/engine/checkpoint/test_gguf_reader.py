"""Converting GGUF: exact weights and tokenizer, refusals by name, all or nothing."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.checkpoint.config import read_config
from engine.checkpoint.gguf_reader import convert_gguf
from engine.checkpoint.safetensors_reader import read_weights
from engine.errors import CheckpointError, UnsupportedModelError, WeightsError
from engine.tokenizer import Tokenizer
from tests.unit.engine.checkpoint.synthetic_gguf import (
    HIDDEN,
    INNER,
    LETTERS,
    TOKENS,
    write_gguf,
)


@pytest.mark.parametrize("tied", [True, False])
def test_unquantised_weights_come_back_exactly(tmp_path: Path, tied: bool) -> None:
    """Every weight equals the original, the row order of q and k included."""
    expected = write_gguf(tmp_path / "m.gguf", tied=tied)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    weights = read_weights(tmp_path / "out", read_config(tmp_path / "out"))
    assert weights.keys() == expected.keys()
    assert ("lm_head.weight" in weights) is not tied
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.BF16]
)
def test_quantised_weights_are_the_rounded_values(
    tmp_path: Path, kind: GGMLQuantizationType
) -> None:
    """A quantised matrix becomes its dequantised values, rounded to bfloat16."""
    expected = write_gguf(tmp_path / "m.gguf", quantisation=kind)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    weights = read_weights(tmp_path / "out", read_config(tmp_path / "out"))
    for part in ("mlp.down_proj", "self_attn.q_proj"):
        name = f"model.layers.1.{part}.weight"
        rounded = dequantize(quantize(expected[name].float().numpy(), kind), kind)
        assert torch.equal(weights[name], torch.from_numpy(rounded).to(torch.bfloat16))


def test_configuration_is_complete(tmp_path: Path) -> None:
    """Sizes, rotary base and end tokens come from the metadata, floats as they were written."""
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    config = read_config(tmp_path / "out")
    assert (config.hidden_size, config.intermediate_size) == (HIDDEN, INNER)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.vocab_size) == (16, len(TOKENS))
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 50000.0)
    assert (config.tie_word_embeddings, config.max_position_embeddings) == (True, 128)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (0,))


def test_tokenizer_is_rebuilt(tmp_path: Path) -> None:
    """Merges, single digits, special tokens and the chat template all work."""
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer(tmp_path / "out")
    strings = tokenizer.token_strings()
    assert strings == dict(enumerate(TOKENS))
    ids = tokenizer.encode("the the 42<end>")
    assert [strings[index] for index in ids] == ["the", "Ġthe", "Ġ", "4", "2", "<end>"]
    assert tokenizer.decode(ids) == "the the 42"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 0)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<start>hi"


def test_user_defined_tokens_are_whole_but_not_special(tmp_path: Path) -> None:
    """A user-defined token is never split, and stays visible when special ones are skipped."""
    types = [3, 4] + [1] * (len(TOKENS) - 2)
    write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.token_type": types})
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer(tmp_path / "out")
    assert tokenizer.encode("<start><end>") == [1, 0]
    assert tokenizer.decode([1, 0]) == "<start>"


def test_folder_without_a_template_has_no_template_file(tmp_path: Path) -> None:
    """A base model stays one: no empty template is made up."""
    write_gguf(tmp_path / "m.gguf", without=("tokenizer.chat_template",))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


def test_other_users_can_read_what_they_could_read(tmp_path: Path) -> None:
    """The weights get the same permissions as the other files."""
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type = 'yarn'"),
        ({"llama.expert_count": 8}, r"llama\.expert_count = 8"),
        ({"llama.attention.sliding_window": 64}, r"llama\.attention\.sliding_window = 64"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count = 8"),
        ({"llama.attention.head_count": [4, 2]}, r"llama\.attention\.head_count = \[4, 2\]"),
        ({"llama.rope.freq_base": "x"}, r"llama\.rope\.freq_base = 'x'"),
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.model = 'llama'"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, r"tokenizer\.ggml\.pre = 'llama-bpe'"),
        ({"tokenizer.ggml.add_bos_token": True}, r"tokenizer\.ggml\.add_bos_token = True"),
        ({"tokenizer.ggml.token_type": [6] * len(TOKENS)}, "has type 6"),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types"),
        ({"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}, "holds a token twice"),
        ({"tokenizer.ggml.merges": ["t h", "the"]}, "merge 'the'"),
        ({"tokenizer.ggml.merges": ["q q"]}, "merges do not fit"),
        ({"tokenizer.ggml.eos_token_id": 4000}, r"eos_token_id = 4000"),
    ],
)
def test_metadata_that_is_not_understood_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """Keys and values that change the model or its tokens are refused by name."""
    write_gguf(tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(CheckpointError, match=named):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    "key", ["llama.block_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.merges"]
)
def test_missing_metadata_is_named(tmp_path: Path, key: str) -> None:
    """Nothing is guessed in place of a missing key."""
    write_gguf(tmp_path / "m.gguf", without=(key,))
    with pytest.raises(CheckpointError, match=key):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_other_architecture_is_refused(tmp_path: Path) -> None:
    """Only the Llama architecture is read."""
    write_gguf(tmp_path / "m.gguf", architecture="qwen2")
    with pytest.raises(UnsupportedModelError, match="architecture 'qwen2'"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.x.attn_q.weight"])
def test_other_tensors_are_refused(tmp_path: Path, name: str) -> None:
    """A tensor that would be left unused is refused by name."""
    write_gguf(tmp_path / "m.gguf", extra_tensor=name)
    with pytest.raises(UnsupportedModelError, match=f"tensor {name}"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_other_quantisation_is_refused(tmp_path: Path) -> None:
    """A block format outside the checked ones is refused by name."""
    write_gguf(tmp_path / "m.gguf", quantisation=GGMLQuantizationType.MXFP4)
    with pytest.raises(UnsupportedModelError, match="quantisation MXFP4"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_missing_tensor_leaves_nothing_behind(tmp_path: Path) -> None:
    """A conversion that fails late leaves neither the folder nor a scratch one."""
    write_gguf(tmp_path / "m.gguf", without=("blk.1.ffn_up.weight",))
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "models" / "out")
    assert list((tmp_path / "models").iterdir()) == []


def test_layers_beyond_the_count_are_refused(tmp_path: Path) -> None:
    """A layer that the metadata does not count is not dropped silently."""
    write_gguf(tmp_path / "m.gguf", metadata={"llama.block_count": 1})
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.1\."):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 3, 20, 400, 3000, -1])
def test_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    """A file cut anywhere is one line that names it."""
    write_gguf(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[:keep] if keep >= 0 else content[: -HIDDEN * 8])
    with pytest.raises(WeightsError, match=r"m\.gguf: not a readable GGUF file"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (json.dumps({"a": 1}).encode(), "not a readable GGUF file"),
    ],
)
def test_other_files_are_recognised(tmp_path: Path, content: bytes, problem: str) -> None:
    """A pointer file is called one, and other content is not GGUF."""
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match=problem):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A path that is not there is one line."""
    with pytest.raises(WeightsError, match=r"absent\.gguf: cannot be read"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "out")


def test_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    """A folder of that name stays as it is."""
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="already exists"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_vocabulary_size_defaults_to_the_tokens(tmp_path: Path) -> None:
    """Without an explicit size the vocabulary is the list of tokens."""
    write_gguf(tmp_path / "m.gguf", without=("llama.vocab_size",))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert read_config(tmp_path / "out").vocab_size == len(LETTERS) + 7

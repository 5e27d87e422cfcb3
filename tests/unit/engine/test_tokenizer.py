"""The tokenizer of a model folder, and the comparison of two vocabularies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError, TokenizerError, VocabularyMismatchError
from engine.tokenizer import Tokenizer, require_same_vocabulary
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY

BYTES = Tokenizer(HEALTHY)
"""Ids 0 to 255 are the bytes, then <pad>, <bos>, <eos>, <eot>."""
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def edited_tokenizer(folder: Path, **changes: object) -> Path:
    """Copy of the byte tokenizer with keys of tokenizer.json set."""
    shutil.copytree(HEALTHY, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_the_round_trip(text: str) -> None:
    """Decoding the ids of a text gives the text."""
    assert BYTES.decode(BYTES.encode(text), skip_special_tokens=False) == text


def test_encode_is_the_utf8_bytes() -> None:
    """The byte tokenizer gives the bytes, and spellings of special tokens their ids."""
    assert BYTES.encode("aé<eos>") == [97, *"é".encode(), 258]


def test_decode_skips_special_tokens_and_padding_rows() -> None:
    """Special tokens are left out on request; ids above the vocabulary give no text."""
    assert BYTES.decode([257, 104, 105, 258, 5000]) == "hi"
    assert BYTES.decode([257, 104], skip_special_tokens=False) == "<bos>h"


def test_lone_surrogate_is_an_error_of_the_request() -> None:
    """Half of a surrogate pair, which JSON can carry, has no bytes."""
    with pytest.raises(RequestError, match="character 1"):
        BYTES.encode("a\ud800")


def test_special_ids_and_sizes() -> None:
    """The named tokens and the size come from the files."""
    assert (BYTES.bos_token_id, BYTES.eos_token_id, BYTES.vocab_size) == (257, 258, 260)
    assert BYTES.token_strings()[97] == "a"
    assert len(BYTES.token_strings()) == 260


def test_named_tokens_in_older_places(tmp_path: Path) -> None:
    """A token may be an object, and may stand in special_tokens_map.json."""
    folder = edited_tokenizer(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eot>"}}')
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<pad>", "eos_token": "<eos>"}')
    tokenizer = Tokenizer(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 259)


def test_special_tokens_can_be_absent(tmp_path: Path) -> None:
    """A folder with tokenizer.json alone works and names no special tokens."""
    shutil.copy(HEALTHY / "tokenizer.json", tmp_path)
    tokenizer = Tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)
    with pytest.raises(TokenizerError, match="no chat template"):
        tokenizer.render_chat(CHAT)


def test_add_special_tokens_is_off_by_default(tmp_path: Path) -> None:
    """What the post-processor adds comes only on request."""
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [257], "tokens": ["<bos>"]}},
    }
    tokenizer = Tokenizer(edited_tokenizer(tmp_path / "m", post_processor=processor))
    assert tokenizer.encode("a") == [97]
    assert tokenizer.encode("a", add_special_tokens=True) == [257, 97]


def test_stored_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    """Settings left by a training run neither cut nor pad a prompt."""
    truncation = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 256,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    folder = edited_tokenizer(tmp_path / "m", truncation=truncation, padding=padding)
    assert Tokenizer(folder).encode("abcde") == [97, 98, 99, 100, 101]


@pytest.mark.parametrize("case", ["H0_control_sharded", "H25_template_in_own_file"])
def test_chats_render_from_either_place(case: str) -> None:
    """The template is found in tokenizer_config.json and in a file of its own."""
    rendered = Tokenizer(CASES / case).render_chat(CHAT)
    assert rendered == "<system>be brief\n<user>hi\n<assistant>"


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """A folder without tokenizer.json says which file is missing."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer(tmp_path)


def test_broken_tokenizer_is_named(tmp_path: Path) -> None:
    """A tokenizer.json that is none is refused with its name."""
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a usable tokenizer"):
        Tokenizer(tmp_path)


def test_case_a11_names_the_first_differing_id() -> None:
    """Two vocabularies of one size with two ids swapped are refused, naming id and tokens."""
    case = CASES / "A11_same_size_other_vocab"
    expected = json.loads((case / "expected.json").read_text())
    with pytest.raises(VocabularyMismatchError) as caught:
        require_same_vocabulary(Tokenizer(case / "target"), Tokenizer(case / "draft"))
    message = str(caught.value)
    assert f"at id {expected['first_differing_id']}" in message
    assert f"{expected['draft_token']!r} in the draft" in message
    assert f"{expected['target_token']!r} in the target" in message


def test_equal_vocabularies_pass() -> None:
    """Folders of one family share their vocabulary, whatever else differs."""
    require_same_vocabulary(BYTES, Tokenizer(CASES / "H16_qkv_bias"))


@pytest.mark.parametrize("smaller_is_target", [True, False])
def test_missing_token_is_named(tmp_path: Path, smaller_is_target: bool) -> None:
    """An id that only one side knows is a difference, in either direction."""
    folder = edited_tokenizer(tmp_path / "m")
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["added_tokens"].pop()
    del stored["model"]["vocab"]["<eot>"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    pair = (Tokenizer(folder), BYTES) if smaller_is_target else (BYTES, Tokenizer(folder))
    with pytest.raises(VocabularyMismatchError, match=r"at id 259: .*no token"):
        require_same_vocabulary(*pair)

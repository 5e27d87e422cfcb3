"""Rebuild the tokenizer files of a model folder from the metadata of a GGUF file.

Supported is byte-level BPE (`gpt2`) with the `smollm` pre-tokenizer, which splits digits one
by one before the usual byte-level expression.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.errors import TokenizerError, UnsupportedModelError

_MODEL = "gpt2"
_PRE_TOKENIZER = "smollm"
_NAMED_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


class _TokenType(IntEnum):
    """The token types of a GGUF vocabulary that have a meaning for byte-level BPE."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


def write_tokenizer(
    metadata: Mapping[str, Any], folder: Path, *, source: Path, max_length: int
) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.

    Args:
        metadata: Key-value pairs of the GGUF file.
        folder: Existing folder to write into. No template file is written without a template.
        source: The GGUF file, for messages.
        max_length: Longest sequence of the model, tokens.

    Raises:
        UnsupportedModelError: Another tokenizer model, pre-tokenizer or token type.
        TokenizerError: Vocabulary or merges are missing, inconsistent or malformed.
    """
    _refuse_unsupported(metadata, source)
    tokens = _list(metadata, "tokenizer.ggml.tokens", source)
    types = _list(metadata, "tokenizer.ggml.token_type", source)
    if len(types) != len(tokens):
        raise TokenizerError(f"{source}: {len(tokens)} tokens but {len(types)} token types")
    tokenizer = _build(tokens, _list(metadata, "tokenizer.ggml.merges", source), source)
    _add_special_tokens(tokenizer, tokens, types, source)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    for name, key in _NAMED_TOKENS.items():
        if key in metadata:
            config[name] = _token_at(tokens, metadata[key], key, source)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _refuse_unsupported(metadata: Mapping[str, Any], source: Path) -> None:
    required = {"tokenizer.ggml.model": _MODEL, "tokenizer.ggml.pre": _PRE_TOKENIZER}
    for key, supported in required.items():
        if metadata.get(key) != supported:
            raise UnsupportedModelError(
                f"{source}: {key} = {metadata.get(key)!r} is not supported "
                f"(supported: {supported!r})"
            )
    for key in (
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix",
    ):
        if metadata.get(key):
            raise UnsupportedModelError(f"{source}: {key} = {metadata[key]!r} is not supported")


def _build(tokens: list[Any], merges: list[Any], source: Path) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise TokenizerError(f"{source}: the vocabulary holds a token twice")
    pairs = [tuple(str(merge).split(" ")) for merge in merges]
    for pair in pairs:
        if len(pair) != 2:
            raise TokenizerError(f"{source}: merge {' '.join(pair)!r} is not a pair of tokens")
    try:
        model = models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in pairs])
    # The tokenizers package raises a bare Exception for merges outside the vocabulary.
    except Exception as error:
        raise TokenizerError(f"{source}: the merges do not fit the vocabulary ({error})") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_special_tokens(
    tokenizer: tokenizers.Tokenizer, tokens: list[Any], types: list[Any], source: Path
) -> None:
    """Mark control and user-defined tokens; each keeps the id it has in the vocabulary."""
    by_type: dict[int, list[tokenizers.AddedToken]] = {kind: [] for kind in _TokenType}
    for token, kind in zip(tokens, types, strict=True):
        if kind not in by_type:
            raise UnsupportedModelError(
                f"{source}: token {token!r} has type {kind}, which is not supported"
            )
        if kind != _TokenType.NORMAL:
            special = kind == _TokenType.CONTROL
            by_type[kind].append(tokenizers.AddedToken(token, special=special, normalized=False))
    tokenizer.add_special_tokens(by_type[_TokenType.CONTROL])
    tokenizer.add_tokens(by_type[_TokenType.USER_DEFINED])


def _list(metadata: Mapping[str, Any], key: str, source: Path) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise TokenizerError(f"{source}: {key} is missing")
    return value


def _token_at(tokens: list[Any], index: Any, key: str, source: Path) -> str:
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise TokenizerError(f"{source}: {key} = {index!r} is outside the {len(tokens)} tokens")
    return str(tokens[index])

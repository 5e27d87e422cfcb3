"""Text to token ids and back, chat prompts, and whether two models share a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from engine.checkpoint.chat_template import ChatTemplate, read_chat_template
from engine.checkpoint.files import JsonObject, read_json
from engine.errors import RequestError, TokenizerError, VocabularyMismatchError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """The tokenizer of one model folder.

    Attributes:
        folder: The model folder.
    """

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json`, and `tokenizer_config.json` where there is one.

        Raises:
            TokenizerError: The tokenizer is missing or unusable.
            CheckpointError: One of the other files is malformed.
        """
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path}: no such file; only tokenizer.json is supported")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # The tokenizers package raises a bare Exception for whatever is wrong with the file.
        except Exception as error:
            raise TokenizerError(f"{path}: not a usable tokenizer ({error})") from error
        # A file may carry the settings it was trained with; prompts are never cut or padded.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._config = _read_optional(folder / "tokenizer_config.json")
        self._special_tokens = _read_special_tokens(
            _read_optional(folder / "special_tokens_map.json"), self._config
        )

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`.

        Args:
            text: Any text; spellings of special tokens become those tokens.
            add_special_tokens: Also add what the tokenizer puts around every sequence. Leave
                it off for rendered chats, whose template has already written those tokens.

        Raises:
            RequestError: The text holds characters that UTF-8 cannot express.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"text holds a lone surrogate at character {error.start}") from error
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids without a token (padding rows of a model) give no text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text for chat messages, ending where the assistant's answer starts.

        Args:
            messages: Each with `role` and `content`.

        Raises:
            RequestError: A message lacks a role or text, or the template refuses the messages.
            TokenizerError: The folder has no chat template, or it is broken.
        """
        return self._chat_template.render(messages)

    def token_strings(self) -> dict[int, str]:
        """Every id of the tokenizer with its token, added tokens included."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return {index: token for token, index in vocabulary.items()}

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; the model's embedding may have more rows."""
        return max(self.token_strings(), default=-1) + 1

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that starts a sequence, or None."""
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a sequence, or None.

        A checkpoint may list further end tokens: generation stops at
        `ModelConfig.eos_token_ids`.
        """
        return self._special_id("eos_token")

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return read_chat_template(self.folder, self._config, self._special_tokens)

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)


def require_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a pair whose token ids do not mean the same.

    The maps are compared, not the sizes: models of one family pad their embeddings
    differently, and two vocabularies of one size can still differ.

    Raises:
        VocabularyMismatchError: Names the first id that differs and both of its tokens.
    """
    target_tokens, draft_tokens = target.token_strings(), draft.token_strings()
    for index in sorted(target_tokens.keys() | draft_tokens.keys()):
        wanted, found = target_tokens.get(index), draft_tokens.get(index)
        if wanted != found:
            raise VocabularyMismatchError(
                f"{draft.folder}: vocabulary differs from that of {target.folder} at id {index}: "
                f"{_shown(found)} in the draft, {_shown(wanted)} in the target"
            )


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def _read_optional(path: Path) -> JsonObject | None:
    return read_json(path) if path.exists() else None


def _read_special_tokens(*sources: JsonObject | None) -> dict[str, str]:
    """Named tokens; a later source wins. Each is a string or an object with its `content`."""
    found: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_TOKENS:
            token = source.values.get(name) if source is not None else None
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str):
                found[name] = token
    return found

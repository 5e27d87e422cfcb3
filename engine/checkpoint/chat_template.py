"""Turn chat messages into a prompt with the template that a checkpoint ships.

A template is a program from whoever published the model, so it runs in a sandbox that can
neither reach Python objects nor change its inputs. The environment offers what templates are
written against in the Hugging Face layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.checkpoint.files import JsonObject, one_line
from engine.errors import RequestError, TokenizerError

TEMPLATE_NAME = "chat_template.jinja"
_DEFAULT_TEMPLATE = "default"


class _RefusedMessagesError(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, *, folder: Path, special_tokens: Mapping[str, str]) -> None:
        """Compile a template.

        Args:
            source: The Jinja text.
            folder: Model folder it came from, for messages.
            special_tokens: Variables such as `bos_token` that the template may print.

        Raises:
            TokenizerError: Not a valid template.
        """
        self._folder = folder
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(
                f"{folder}: chat template line {error.lineno}: {one_line(error)}"
            ) from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text for `messages`, ending where the assistant's answer starts.

        Raises:
            RequestError: A message lacks a role or text, or the template refuses the messages.
            TokenizerError: The template fails, or tries what the sandbox forbids.
        """
        for index, message in enumerate(messages):
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise RequestError(f"message {index}: {key} must be a text")
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except _RefusedMessagesError as error:
            raise RequestError(
                f"the chat template of {self._folder} refuses the messages: {one_line(error)}"
            ) from error
        # A template can provoke any exception of the expressions it evaluates.
        except Exception as error:
            raise TokenizerError(
                f"{self._folder}: chat template failed: {type(error).__name__}: {one_line(error)}"
            ) from error


def read_chat_template(
    folder: Path, config: JsonObject | None, special_tokens: Mapping[str, str]
) -> ChatTemplate:
    """Find and compile the template of a model folder.

    A template in a file of its own counts before one inside `tokenizer_config.json`; of a
    named list, the one called `default` is taken.

    Args:
        folder: The model folder.
        config: Its `tokenizer_config.json`, or None.
        special_tokens: Variables such as `bos_token`.

    Raises:
        TokenizerError: There is none, it cannot be read, or it is not valid.
    """
    path = folder / TEMPLATE_NAME
    if path.exists():
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read ({one_line(error)})") from error
        return ChatTemplate(source, folder=folder, special_tokens=special_tokens)
    found = config.values.get("chat_template") if config is not None else None
    if isinstance(found, list):
        named = {entry.get("name"): entry for entry in found if isinstance(entry, dict)}
        found = named.get(_DEFAULT_TEMPLATE, {}).get("template")
    if not isinstance(found, str):
        raise TokenizerError(
            f"{folder}: has no chat template; use an instruction-tuned model for chat requests, "
            f"or add {TEMPLATE_NAME}"
        )
    return ChatTemplate(found, folder=folder, special_tokens=special_tokens)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: the filter built into Jinja escapes for HTML, which changes the prompt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise _RefusedMessagesError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

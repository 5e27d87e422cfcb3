"""Chat templates: rendered like the Hugging Face layout asks, inside a sandbox."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.checkpoint.chat_template import ChatTemplate, read_chat_template
from engine.checkpoint.files import JsonObject
from engine.errors import RequestError, TokenizerError

HELLO = [{"role": "user", "content": "hello"}]


def template(source: str, **special_tokens: str) -> ChatTemplate:
    """A template that belongs to no real folder."""
    return ChatTemplate(source, folder=Path("/models/some"), special_tokens=special_tokens)


def test_blocks_leave_no_blank_lines() -> None:
    """Lines that hold only a block vanish, indentation included."""
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}"
    assert template(source).render(HELLO) == "user\n"


def test_special_tokens_and_generation_prompt_are_available() -> None:
    """A template may print the named tokens and ask where the answer starts."""
    source = "{{ bos_token }}{% if add_generation_prompt %}go{% endif %}{% if tools %}x{% endif %}"
    assert template(source, bos_token="<s>").render(HELLO) == "<s>go"


def test_loop_controls_are_available() -> None:
    """Templates use break and continue."""
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert template(source).render(HELLO) == "01"


def test_tojson_is_plain_json() -> None:
    """JSON in a prompt is not escaped for HTML and keeps its characters and order."""
    value = {"b": "<é>", "a": 1}
    source = "{{ value | tojson }}|{{ value | tojson(indent=2) }}"
    rendered = template(source, value=value).render(HELLO)  # type: ignore[arg-type]
    assert rendered == '{"b": "<é>", "a": 1}|' + json.dumps(value, ensure_ascii=False, indent=2)


def test_strftime_now_formats_the_current_time() -> None:
    """Templates may print the date."""
    assert re.fullmatch(r"\d{4}", template("{{ strftime_now('%Y') }}").render(HELLO))


def test_raise_exception_refuses_the_messages() -> None:
    """A template that rejects a conversation gives an error of the request, on one line."""
    refusing = template("{{ raise_exception('roles must\nalternate') }}")
    with pytest.raises(RequestError, match="refuses the messages: roles must alternate"):
        refusing.render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ESCAPED') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_escapes_from_the_sandbox_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A hostile template reaches no Python object, no file and no endless range."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError, match=r"/models/some: chat template failed"):
        template(source).render(HELLO)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ["{{ messages.__class__ }}", "{{ strftime_now.__globals__ }}"])
def test_inner_attributes_print_as_nothing(source: str) -> None:
    """Attributes that lead into Python do not exist for a template."""
    assert template(source).render(HELLO) == ""


def test_failing_expression_is_one_line() -> None:
    """An error inside a template names the folder and the error."""
    with pytest.raises(TokenizerError, match="ZeroDivisionError"):
        template("{{ 1 / 0 }}").render(HELLO)


def test_syntax_error_names_the_line() -> None:
    """A template that is none is refused when it is compiled."""
    with pytest.raises(TokenizerError, match="line 2"):
        template("ok\n{% if %}")


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": 3, "content": "x"}])
def test_messages_need_role_and_text(message: dict[str, str]) -> None:
    """A message without a role or a text is never rendered as the word None."""
    with pytest.raises(RequestError, match="message 1"):
        template("x").render([*HELLO, message])


def test_own_file_counts_before_the_configuration(tmp_path: Path) -> None:
    """A template in its own file wins over one in tokenizer_config.json."""
    (tmp_path / "chat_template.jinja").write_text("file")
    config = JsonObject(tmp_path / "tokenizer_config.json", {"chat_template": "config"})
    assert read_chat_template(tmp_path, config, {}).render(HELLO) == "file"


def test_named_list_uses_the_default(tmp_path: Path) -> None:
    """Of several named templates the one called default is used."""
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config = JsonObject(tmp_path / "tokenizer_config.json", {"chat_template": named})
    assert read_chat_template(tmp_path, config, {}).render(HELLO) == "d"


@pytest.mark.parametrize("found", [None, [], [{"name": "rag", "template": "r"}], 5])
def test_no_template_names_the_folder(tmp_path: Path, found: object) -> None:
    """Without a usable template chat requests are refused, naming the folder."""
    config = JsonObject(tmp_path / "tokenizer_config.json", {"chat_template": found})
    with pytest.raises(TokenizerError, match=f"{tmp_path}: has no chat template"):
        read_chat_template(tmp_path, config, {})


def test_unreadable_template_file_is_named(tmp_path: Path) -> None:
    """A template file that is not text is refused with its name."""
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja: cannot be read"):
        read_chat_template(tmp_path, None, {})

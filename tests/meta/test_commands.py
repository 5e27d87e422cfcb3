"""Every command has help and is in the README; the light ones stay light."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from autotune.cli.root import COMMANDS, spectune
from tests.unit.autotune.cli import samples

ROOT = Path(__file__).parents[2]

HEAVY = ("torch", "optuna", "numpy")

BLOCKED = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Refuse())
from autotune.cli import main
main()
"""
"""Runs `spectune` in a process where the heavy packages cannot be imported."""


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and everything below it, by the words that are typed."""
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from walk(below, f"{path} {name}")


EVERYTHING = dict(walk(spectune, "spectune"))


@pytest.mark.parametrize("path", EVERYTHING)
def test_help(path: str) -> None:
    """Commands and options say what they do, in sentences."""
    command = EVERYTHING[path]
    assert command.help
    assert command.get_short_help_str(200).endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts[0]}"


@pytest.mark.parametrize("name", COMMANDS)
def test_readme_names_every_command(name: str) -> None:
    """A command that nobody can find does not exist."""
    assert f"spectune {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "show",
        "show --json",
        "show --batch 3",
        "history",
        "export",
        "export --json",
        "detect",
        "detect --json",
        "acceptance",
        "explain 1",
        *(f"{name} --help" for name in COMMANDS),
    ],
)
def test_light_commands_need_nothing_heavy(arguments: str, filled_store: Path) -> None:
    """Reading what was published works where torch, optuna and numpy cannot be imported."""
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments.split()],
        env=os.environ | {"SPECTUNED_STORE": str(filled_store)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout


@pytest.mark.parametrize("arguments", ["--help", "show", "export", "history"])
def test_quick_commands_import_no_database_layer(arguments: str, filled_store: Path) -> None:
    """What people wait for leaves SQLAlchemy, which takes longer than all else, alone."""
    code = (
        "import sys\n"
        "from autotune.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    sys.stderr.write(str('sqlalchemy' in sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()],
        env=os.environ | {"SPECTUNED_STORE": str(filled_store)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.endswith("False")


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of made-up records."""
    path = tmp_path_factory.mktemp("store") / "test.db"
    samples.fill(path).close()
    return path

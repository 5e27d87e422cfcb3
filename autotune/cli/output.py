"""Where commands write: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console


def make_console(*, stderr: bool = False) -> Console:
    """A console for plain text: names in brackets are names, and colour needs a terminal."""
    from rich.console import Console

    return Console(
        stderr=stderr,
        # NO_COLOR takes emphasis away too: what asks for it is often no terminal at heart.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        highlight=False,
        emoji=False,
    )


def print_json(value: object) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def note(text: str) -> None:
    """Tell people something beside the output."""
    click.echo(text, err=True)

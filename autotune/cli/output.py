"""Where commands write: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 200  # a pipe has no width, and a table cut to 80 columns loses its figures


def make_console(*, stderr: bool = False) -> Console:
    """A console for plain text: names in brackets are names, and colour needs a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        stderr=stderr,
        width=_PIPED_WIDTH if wide else None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


def print_json(value: object) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def note(text: str) -> None:
    """Tell people something beside the output."""
    click.echo(text, err=True)

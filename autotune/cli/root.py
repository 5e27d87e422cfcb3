"""The command `spectune` itself: its global options, its commands and how it reports errors.

Commands are imported when they are asked for, and import what they work with when they run, so
that `spectune --help` costs nothing but the parser.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from autotune.cli import exits
from autotune.cli.context import Options
from autotune.errors import AutotuneError
from engine.errors import EngineError
from store.errors import StoreError

PROGRAM = "spectune"

COMMANDS = (
    "tune",
    "train",
    "show",
    "acceptance",
    "explain",
    "export",
    "history",
    "remeasure",
    "replay",
    "detect",
    "models",
    "store",
    "studies",
    "daemon",
)
"""Each is the attribute `command` of the module of that name beside this one."""

EPILOG = (
    "Exit codes: 0 done, 1 a fault of the program, 2 bad input, 3 refused by the serving engine, "
    "4 nothing is published, 130 interrupted.\n\n"
    f'Completion in bash: eval "$(_{PROGRAM.upper()}_COMPLETE=bash_source {PROGRAM})"; '
    "zsh_source and fish_source are there too."
)


class Root(click.Group):
    """Finds commands by name and turns every expected error into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"autotune.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptedError("interrupted") from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse, run and leave, whatever `standalone_mode` says.

        Raises:
            SystemExit: Always, with one of the codes in `autotune.cli.exits`.
        """
        try:
            result = super().main(
                args,
                PROGRAM,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except BrokenPipeError:
            # The interpreter flushes once more at exit, and must not fail there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = exits.UNEXPECTED
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else PROGRAM
            code = _report(f"{path}: {error.format_message()} (see {path} --help)", error.exit_code)
        except click.ClickException as error:
            code = _report(f"{PROGRAM}: {error.format_message()}", error.exit_code)
        except click.Abort:
            code = _report(f"{PROGRAM}: interrupted", exits.INTERRUPTED)
        except AutotuneError as error:
            code = _report(f"{PROGRAM}: {error}", error.exit_code)
        except (EngineError, StoreError) as error:
            code = _report(f"{PROGRAM}: {error}", exits.BAD_INPUT)
        except OSError as error:
            code = _report(f"{PROGRAM}: {error}", exits.UNEXPECTED)
        sys.exit(code)


class _InterruptedError(click.ClickException):
    """Ctrl-C, reported without the empty line that click puts before it."""

    exit_code = exits.INTERRUPTED


def _report(text: str, code: int) -> int:
    click.echo(" ".join(text.split()), err=True)
    return code


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"{PROGRAM} {version('spectuned')}")
        ctx.exit()


@click.group(
    cls=Root,
    name=PROGRAM,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--store",
    metavar="PATH|URL",
    envvar="SPECTUNED_STORE",
    help="The store: a file, or sqlite:///FILE.  [default: spectuned.db in the state folder]",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def spectune(ctx: click.Context, store: str | None) -> None:
    """Find the fastest lossless speculative decoding for your model, device and traffic.

    `tune` measures and publishes; `show`, `acceptance` and `explain` tell what was found and why;
    `export` hands it to a serving engine.
    """
    ctx.obj = Options(store=store)

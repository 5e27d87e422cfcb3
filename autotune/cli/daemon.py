"""`spectune daemon`: the service in the foreground."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource


@click.command(name="daemon", short_help="Run the service.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The service's configuration.  [default: $SPECTUNED_CONFIG, else "
    "/etc/spectuned/spectuned.toml if it exists, else built-in settings]",
)
@click.pass_context
def command(ctx: click.Context, config: Path | None) -> None:
    """Run the service: tune on a schedule, publish, stop cleanly on SIGTERM.

    Its store is the one that its configuration or SPECTUNED_STORE names.
    """
    parent = ctx.parent
    if parent is not None and parent.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--store does not reach the service: name its store in the configuration, as `store`, "
            "or in SPECTUNED_STORE",
            ctx,
        )
    from autotune.service.serve import run

    ctx.exit(run(config))

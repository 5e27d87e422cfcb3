"""`spectune models`: targets in the cache."""

from __future__ import annotations

from dataclasses import asdict

import click

from autotune.cli import output


@click.group(name="models", short_help="Fetch and list models.")
def command() -> None:
    """Fetch models, and list those in the cache."""


@command.command(name="fetch")
@click.argument("name", required=False)
def fetch(name: str | None) -> None:
    """Fetch a model and print its folder.

    NAME is the embedded model (the default), a folder, or a hub repository as owner/name.
    """
    from engine.cache_folder import default_cache
    from engine.checkpoint.hub import EMBEDDED, resolve_model

    wanted = EMBEDDED if name is None else name
    click.echo(resolve_model(wanted, default_cache(), output.note))


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(as_json: bool) -> None:
    """List the models in spectuned's own cache, with their fingerprints.

    Hub repositories are in the hub client's cache and not listed.
    """
    from engine.cache_folder import default_cache
    from engine.checkpoint.hub import list_models

    models = list_models(default_cache())
    if as_json:
        output.print_json([asdict(model) | {"path": str(model.path)} for model in models])
        return
    from autotune.cli.views.models import models_table
    from autotune.cli.views.tables import print_table

    print_table(output.make_console(), models_table(models))

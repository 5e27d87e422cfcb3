"""`spectune store`: care of the store."""

from __future__ import annotations

import click

from autotune.cli import context


@click.group(name="store", short_help="Look after the store.")
def command() -> None:
    """Look after the store."""


@command.command(name="migrate")
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Bring the tables of an older store to this version. Back the file up first."""
    from store.errors import SchemaOutdatedError
    from store.location import parse_location
    from store.repository import Store

    path = parse_location(context.store_location(ctx))
    try:
        Store.open(path, read_only=True).close()
    except SchemaOutdatedError:
        Store.open(path, migrate=True).close()
        click.echo(f"{path} was migrated")
    else:
        click.echo(f"{path} is up to date")

"""`spectune history`: every generation that was published."""

from __future__ import annotations

import click

from autotune.cli import context, output


@click.command(name="history", short_help="List published generations.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most to list."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; empty if there is none.")
@click.pass_context
def command(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List published generations, the newest first."""
    from autotune.report.history import history_row

    rows = [
        history_row(publication, context.read_document(publication))
        for publication in context.publications(ctx, limit=limit)
    ]
    if as_json:
        output.print_json([row.to_json() for row in rows])
    if not rows:
        raise context.nothing_published(ctx)
    if as_json:
        return
    from autotune.cli.views.history import history_table
    from autotune.cli.views.tables import print_table

    print_table(output.make_console(), history_table(rows))

"""`spectune show`: what is published."""

from __future__ import annotations

import click

from autotune.cli import context, output


@click.command(name="show", short_help="Show what is published.")
@click.option(
    "--batch",
    type=int,
    metavar="N",
    help="Tell only K for this batch size, measured or not, by the published rule.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the document itself.")
@click.pass_context
def command(ctx: click.Context, batch: int | None, as_json: bool) -> None:
    """Show the published configuration and the evidence behind it.

    With --json it prints the very bytes that are stored and served; with --batch as well, the
    cell of the schedule. `null` stands for "nothing published".
    """
    publication = context.latest(ctx, as_json=as_json)
    if as_json and batch is None:
        click.echo(publication.document, nl=False)
        return
    config = context.read_document(publication)
    if batch is not None:
        from autotune.report.lookup import cell_for

        try:
            cell = cell_for(config, batch)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="--batch") from error
        if as_json:
            output.print_json(
                {"batch_size": batch, "drafter": config.envelope.drafter}
                | cell.model_dump(mode="json")
            )
            return
        rests = "not measured" if cell.measured_at is None else f"measured, {cell.status}"
        click.echo(
            f"batch size {batch}: K = {cell.num_speculative_tokens}, drafter "
            f"{config.envelope.drafter} ({rests}; workload: {config.workload.source})"
        )
        return
    from datetime import UTC, datetime

    from autotune.cli.views.publication import print_publication

    print_publication(output.make_console(), config, publication, datetime.now(UTC))

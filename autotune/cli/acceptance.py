"""`spectune acceptance`: what the drafters' tokens are worth to the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autotune.cli import context, output

if TYPE_CHECKING:
    from autotune.document import PublishedConfig


@click.command(name="acceptance", short_help="Show how many draft tokens are accepted.")
@click.option(
    "--by",
    default="task,position",
    show_default=True,
    metavar="AXIS,...",
    help="What to tell apart: any of task, temperature, position, drafter.",
)
@click.option(
    "--drafter",
    metavar="NAME",
    help="This drafter, at every draft temperature.  [default: the published one, or the best]",
)
@click.option(
    "--k",
    "num_speculative_tokens",
    type=int,
    metavar="K",
    help="This number of draft tokens.  [default: the largest that is published]",
)
@click.option("--run", "run_id", metavar="ID", help="A run.  [default: the published one]")
@click.option("--json", "as_json", is_flag=True, help="Print counts and ratios as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    by: str,
    drafter: str | None,
    num_speculative_tokens: int | None,
    run_id: str | None,
    as_json: bool,
) -> None:
    """Show how many draft tokens are accepted, by task, temperature, position or drafter.

    All ratios are ratios of sums. With --json, `null` stands for "nothing published".
    """
    from autotune.report import acceptance

    axes = acceptance.parse_axes(by)
    if run_id is None:
        publication = context.latest(ctx, as_json=as_json)
        run_id = publication.run_id
        config: PublishedConfig | None = context.read_document(publication)
    else:
        config = context.published_by(ctx, run_id)
    with context.open_store(ctx) as repo:
        report = acceptance.acceptance_report(
            repo,
            run_id,
            config,
            axes,
            drafter=drafter,
            num_speculative_tokens=num_speculative_tokens,
        )
    if as_json:
        output.print_json(report.to_json())
        return
    from autotune.cli.views.acceptance import print_acceptance

    print_acceptance(output.make_console(), report)

"""`spectune remeasure`: does the publication hold up?"""

from __future__ import annotations

import click

from autotune.cli import context, output


@click.command(name="remeasure", short_help="Measure the publication a second time.")
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of the new draw.  [default: the run's + 1]"
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def command(ctx: click.Context, seed: int | None, as_json: bool) -> None:
    """Measure what is published a second time, independently, and compare.

    Other requests, other answers, fresh blocks. Of the 95 % intervals of the differences, one in
    twenty is expected to miss zero by chance.
    """
    from autotune.cli.bar import progress_bar
    from autotune.report.comparison import comparison_json
    from autotune.tuning.remeasure import remeasure
    from store.repository import Store

    context.latest(ctx, as_json=as_json)
    context.stop_on_sigterm()
    with Store.open(context.store_location(ctx)) as repo, progress_bar() as bar:
        comparisons = remeasure(repo, bar, seed=seed)
    if as_json:
        output.print_json([comparison_json(one) for one in comparisons])
        return
    from autotune.cli.views.comparison import print_comparisons

    print_comparisons(output.make_console(), comparisons)

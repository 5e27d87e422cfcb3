"""`spectune explain`: why a batch size got its K."""

from __future__ import annotations

import click

from autotune.cli import context, output


@click.command(name="explain", short_help="Explain the choice for a batch size.")
@click.argument("batch_size", metavar="BATCH", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def command(ctx: click.Context, batch_size: int, as_json: bool) -> None:
    """Explain the published K of batch size BATCH.

    Tells the candidates that were tried there, who proposed them, their speeds with intervals,
    the model's predictions, failures, and the reason of the decision. For a size that was not
    measured it tells the rule and the measured neighbours. With --json, `null` stands for
    "nothing published".
    """
    from autotune.report.explain import explain_published

    config = context.read_document(context.latest(ctx, as_json=as_json))
    with context.open_store(ctx) as repo:
        try:
            explanation = explain_published(repo, config, batch_size)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="BATCH") from error
    if as_json:
        output.print_json(explanation.to_json())
        return
    from autotune.cli.views.explanation import print_explanation

    print_explanation(output.make_console(), explanation, config.workload.source)

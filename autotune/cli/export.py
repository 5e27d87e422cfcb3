"""`spectune export`: the published document for a serving engine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autotune.cli import context, exits, output

_DRAFTS = "drafts"


@click.command(name="export", short_help="Print it for a serving engine.")
@click.option(
    "--format",
    "engine",
    type=click.Choice(["vllm"]),
    default="vllm",
    show_default=True,
    help="The serving engine.",
)
@click.option(
    "--max-num-seqs",
    type=int,
    default=256,
    show_default=True,
    metavar="N",
    help="The server's own --max-num-seqs: the table ends there.",
)
@click.option("--max-k", type=int, metavar="K", help="Largest K that the server takes.")
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Where a draft made of the target is written.  [default: drafts beside the store]",
)
@click.option(
    "--target",
    metavar="DIR|REPO",
    help="The target that such a draft is made of.  [default: the published one]",
)
@click.option("--offer", is_flag=True, help="If the document is refused, take what is offered.")
@click.option("--json", "as_json", is_flag=True, help="Print a whole report as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    engine: str,
    max_num_seqs: int,
    max_k: int | None,
    out_dir: Path | None,
    target: str | None,
    offer: bool,
    as_json: bool,
) -> None:
    """Print the value of vLLM's --speculative-config, and nothing else, on stdout.

    Notes go to stderr. A drafter made of the target's parts is written as a whole
    draft folder. What
    vLLM cannot express is refused by name; the best it can express is offered with its own
    figures, and the exit code is 3 unless --offer takes it. Nothing is printed where vLLM should
    start without the option. With --json, `null` stands for "nothing published".
    """
    from autotune.cli.views.export import export_lines
    from autotune.render.plan import plan_vllm, provide_draft
    from store.location import parse_location

    config = context.read_document(context.latest(ctx, as_json=as_json))
    drafts = out_dir or parse_location(context.store_location(ctx)).parent / _DRAFTS
    plan = plan_vllm(
        config, lambda: context.open_store(ctx), drafts, max_num_seqs=max_num_seqs, max_k=max_k
    )
    usable = offer or not plan.refused
    if usable and plan.draft is not None:
        provide_draft(config, plan.draft, target, output.note)
    for line in export_lines(plan, config.envelope):
        output.note(line)
    if as_json:
        output.print_json(plan.to_json())
    elif usable and plan.speculative_config is not None:
        click.echo(json.dumps(plan.speculative_config))
    if not usable:
        ctx.exit(exits.REFUSED)

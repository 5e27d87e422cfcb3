"""`spectune studies`: the notes that Optuna keeps of searches."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from autotune.cli import context, output

_ALL = 2**31 - 1


@click.group(name="studies", short_help="Look after Optuna's studies.")
def command() -> None:
    """Look after Optuna's studies, which are an index of the ledger."""


@command.command(name="rebuild")
@click.option(
    "--run",
    "run_id",
    metavar="ID",
    help="This run alone.  [default: every search]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the studies.")
@click.pass_context
def rebuild(ctx: click.Context, run_id: str | None, as_json: bool) -> None:
    """Make the studies anew from the ledger.

    The file beside the store is replaced whole, whatever state it was in; while a search is running
    it is left alone. It then holds one study for each batch size of the runs asked for.
    """
    from autotune.settings import STUDIES_FILE
    from autotune.tuning.rebuild import rebuild_studies
    from store.location import parse_location
    from store.repository import Store

    context.open_store(ctx).close()  # one that does not exist is not made
    location = parse_location(context.store_location(ctx))
    path = location.parent / STUDIES_FILE
    with Store.open(location, migrate=False) as store:
        store.interrupt_stale_runs(datetime.now(UTC))
        runs = [store.run(run_id)] if run_id else [*reversed(store.runs(limit=_ALL))]
        searches = [run for run in runs if run.kind == "tune"]
        if run_id and not searches:
            raise click.BadParameter(f"{run_id} is no search", ctx, param_hint="--run")
        rebuilt = rebuild_studies(store, path, searches)
    if as_json:
        output.print_json(
            [
                {"study": one.name, "num_trials": one.num_trials, "num_failed": one.num_failed}
                for one in rebuilt
            ]
        )
        return
    if not rebuilt:
        click.echo("the store holds no search: nothing to rebuild")
        return
    click.echo(
        f"{path}: {len(rebuilt)} studies with {sum(one.num_trials for one in rebuilt)} trials "
        f"from {len(searches)} searches"
    )

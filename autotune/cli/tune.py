"""`spectune tune`: the main job, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import context, output

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

    from store.records import Publication
    from store.repository import Store


class _Setting(click.Option):
    """An option whose help tells the default of the setting it is for."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """The extras of the help, the default among them."""
        from autotune.settings import TuneSettings

        default = TuneSettings.model_fields[self.name or ""].default
        told = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        return {**super().get_help_extra(ctx), "default": told}


def _named_folder(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Path]:
    """`NAME=DIR` pairs as a mapping."""
    folders: dict[str, Path] = {}
    for value in values:
        name, equals, folder = value.partition("=")
        if not (name and equals and folder) or name in folders:
            problem = "named twice" if name in folders else "must be NAME=DIR"
            raise click.BadParameter(f"{value}: {problem}", ctx, param)
        folders[name] = Path(folder).expanduser().absolute()
    return folders


def _named_target(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A folder by its full path, since the run may be repeated from elsewhere."""
    folder = Path(value).expanduser() if value else None
    return str(folder.absolute()) if folder is not None and folder.is_dir() else value


@click.command(name="tune", short_help="Search, publish and show the fastest.")
@click.option(
    "--traffic",
    type=click.Path(path_type=Path, resolve_path=True),
    metavar="FILE",
    help="JSONL of OpenAI-style requests.  [default: the requests that come with spectuned]",
)
@click.option(
    "--target",
    cls=_Setting,
    metavar="DIR|REPO",
    callback=_named_target,
    help="The model: a folder or a hub repository.",
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=DIR",
    callback=_named_folder,
    help="A checkpoint of a drafter to try, a draft model or an EAGLE-3 head. May be repeated.  "
    "[default: those that come with spectuned, for the embedded target]",
)
@click.option(
    "--layer-skip",
    type=int,
    multiple=True,
    metavar="N",
    help="Layers of the target to try as a draft. May be repeated.  [default: three depths where "
    "there are no other drafters]",
)
@click.option(
    "--batch",
    "batch_sizes",
    cls=_Setting,
    type=int,
    multiple=True,
    metavar="N",
    help="A batch size to measure. May be repeated.",
)
@click.option(
    "--max-k",
    "max_num_speculative_tokens",
    cls=_Setting,
    type=int,
    metavar="K",
    help="Largest number of draft tokens to try.",
)
@click.option(
    "--requests",
    "num_requests",
    cls=_Setting,
    type=int,
    metavar="N",
    help="Requests of the traffic to record.",
)
@click.option(
    "--trials",
    cls=_Setting,
    type=int,
    metavar="N",
    help="Arms to measure per batch size.",
)
@click.option("--seed", cls=_Setting, type=int, help="Seed of every random choice.")
@click.option(
    "--dtype",
    cls=_Setting,
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Compute type; auto takes the fastest.",
)
@click.option(
    "--device",
    cls=_Setting,
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Where to run; auto takes a GPU if there is one.",
)
@click.pass_context
def command(ctx: click.Context, /, **values: object) -> None:
    """Search the fastest configuration, publish it, and show it.

    Records the target's answers to sampled requests, searches drafter, draft tokens, draft
    temperature and on/off at every batch size, and measures the best again on fresh blocks
    before anything is published. Ctrl-C ends it; what was published stays.
    """
    from autotune.settings import STUDIES_FILE, TuneSettings

    # An option that was not given is left to the settings' own default.
    settings = TuneSettings.parse(
        {name: value for name, value in values.items() if value not in (None, (), {})}
    )
    from autotune.cli.bar import progress_bar
    from autotune.tuning.tune import tune
    from store.location import parse_location
    from store.repository import Store

    location = parse_location(context.store_location(ctx))
    context.stop_on_sigterm()
    with Store.open(location) as repo:
        with progress_bar() as bar:
            publication = tune(settings, repo, location.parent / STUDIES_FILE, bar)
        if publication is None:
            raise context.NothingPublishedError(
                "no trial was valid, so nothing was published and what was published before stays; "
                "the notes above say why (on a busy machine: try again when it is idle)"
            )
        _print_result(repo, publication)


def _print_result(repo: Store, publication: Publication) -> None:
    """The tables of `spectune show` and `spectune acceptance`."""
    from datetime import UTC, datetime

    from autotune.cli.views.acceptance import print_acceptance
    from autotune.cli.views.publication import print_publication
    from autotune.report.acceptance import acceptance_report

    console = output.make_console()
    config = context.read_document(publication)
    print_publication(console, config, publication, datetime.now(UTC))
    console.print()
    axes = ("task", "position")
    print_acceptance(console, acceptance_report(repo, publication.run_id, config, axes))

"""`spectune train`: a drafter for a target, learned from the target's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import context, output

if TYPE_CHECKING:
    from autotune.training.settings import TrainSettings

_FILE = click.Path(path_type=Path, resolve_path=True, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, resolve_path=True, file_okay=False)


@click.command(name="train", short_help="Train a drafter for a model.")
@click.option(
    "--method",
    type=click.Choice(["layer-pruned", "eagle3"]),
    required=True,
    help="A few of the target's layers, or an EAGLE-3 head.",
)
@click.option("--out", type=_FOLDER, required=True, metavar="DIR", help="The folder to write.")
@click.option(
    "--workload",
    type=_FILE,
    metavar="FILE",
    help="JSONL of requests to learn from, as for `tune --traffic`.",
)
@click.option(
    "--heldout",
    type=_FILE,
    metavar="FILE",
    help="JSONL of requests to be judged on.  [default: a tenth of the workload's prompts]",
)
@click.option("--target", metavar="DIR|REPO", help="The model.  [default: the embedded one]")
@click.option(
    "--budget",
    metavar="TIME",
    help="Time for answering and training, such as 90s, 30m or 1h.  [default: 30m]",
)
@click.option(
    "--draft-vocab",
    "draft_vocab_size",
    type=int,
    metavar="N",
    help="Tokens that an EAGLE-3 head can draft.  [default: 8192]",
)
@click.option(
    "--layers",
    "num_layers",
    type=int,
    metavar="N",
    help="Layers of a layer-pruned draft.  [default: 2]",
)
@click.option("--learning-rate", type=float, metavar="X", help="Peak.  [default: 0.001]")
@click.option("--seed", type=int, metavar="N", help="Seed of every random choice.  [default: 0]")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False),
    metavar="DIR",
    help="Learn from these answers, kept with --keep-work by an earlier run.",
)
@click.option(
    "--max-corpus-gib",
    type=float,
    metavar="X",
    help="Most that the answers may take on disk, GiB.  [default: 8]",
)
@click.option("--keep-work", is_flag=True, help="Leave answers and states beside the drafter.")
@click.option("--json", "as_json", is_flag=True, help="Print the drafter's facts as JSON.")
def command(keep_work: bool, as_json: bool, **values: object) -> None:
    """Train a drafter on the target's own answers and write it with its model card.

    The target answers the requests for two fifths of the budget; the rest is training, judged
    by tokens per round on held-out answers and ended early when they stop growing. Answering the
    held-out requests comes on top. A run that was stopped goes on when its command is repeated.
    """
    from autotune.training.settings import TrainSettings

    # An option that was not given is left to the settings' own default.
    settings = TrainSettings.parse(
        {name: value for name, value in values.items() if value is not None}
    )
    from autotune.cli.bar import progress_bar
    from autotune.training.run import train_drafter

    context.stop_on_sigterm()
    try:
        with progress_bar() as bar:
            facts = train_drafter(settings, bar, keep_work=keep_work)
    except (KeyboardInterrupt, SystemExit):
        _tell_how_to_go_on(settings)
        raise
    if as_json:
        output.print_json(facts.to_json())
        return
    from autotune.cli.views.tables import print_table
    from autotune.cli.views.training import acceptance_table

    console = output.make_console()
    print_table(console, acceptance_table(facts))
    console.print(f"Written to {settings.out}", soft_wrap=True)


def _tell_how_to_go_on(settings: TrainSettings) -> None:
    if settings.work.exists():
        output.note(f"{settings.work} keeps what was done: repeat the command to go on")

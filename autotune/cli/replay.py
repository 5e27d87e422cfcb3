"""`spectune replay`: a drafter on the answers that a server gave and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autotune.cli import context, output


@click.command(name="replay", short_help="Score a drafter on a server's own log.")
@click.option(
    "--logs",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    metavar="FILE",
    help="JSONL of requests with their responses, plain or gzip.",
)
@click.option(
    "--drafter",
    required=True,
    metavar="NAME|DIR|REPO",
    help="ngram, or a draft model: a folder or hub repository, with NAME= in front if it is to "
    "have another name.",
)
@click.option(
    "--target",
    metavar="DIR|REPO",
    help="The model that answered, of which the tokenizer is read. Needed where the log holds "
    "text in place of token ids.",
)
@click.option(
    "--logprobs",
    "log_probs",
    type=click.Choice(["processed", "raw"]),
    help="What the log's log-probabilities are: after temperature, top-k and top-p, or before. "
    "Not needed for ngram.",
)
@click.option(
    "--max-k",
    "max_num_speculative_tokens",
    type=click.IntRange(1, 32),
    default=8,
    show_default=True,
    metavar="K",
    help="Largest number of draft tokens.",
)
@click.option(
    "--draft-temperature",
    type=click.FloatRange(0, 10),
    metavar="X",
    help="Temperature of the draft; 0 drafts greedily.  [default: each request's own]",
)
@click.option(
    "--rule",
    type=click.Choice(["ratio", "block"]),
    default="ratio",
    show_default=True,
    help="The rule whose acceptance is shown; tokens per round are shown for both.",
)
@click.option(
    "--by",
    default="task,temperature,position",
    show_default=True,
    metavar="AXIS,...",
    help="What to tell apart: any of task, temperature, position.",
)
@click.option(
    "--limit",
    "max_answers",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Answers to take, from the start of the log.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes a GPU if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print counts and ratios as JSON.")
def command(rule: str, by: str, as_json: bool, **values: Any) -> None:
    """Score a drafter on a server's own log, without running its model.

    Lossless speculation does not change what a server says, so its answers and the probability
    of each of their tokens tell how many draft tokens it would have accepted, for every K. Figures
    are expectations given these answers; intervals are for the choice of answers.
    """
    from autotune.cli.bar import progress_bar
    from autotune.replay_logs.run import replay_logs
    from autotune.replay_logs.settings import ReplaySettings
    from autotune.report.acceptance import parse_axes

    axes = parse_axes(by)
    settings = ReplaySettings(**values)
    context.stop_on_sigterm()
    with progress_bar() as bar:
        report = replay_logs(settings, axes, bar)
    if as_json:
        output.print_json(report.to_json())
        return
    from autotune.cli.views.replayed import print_replay

    print_replay(output.make_console(), report, rule if rule in report.rules else report.rules[0])

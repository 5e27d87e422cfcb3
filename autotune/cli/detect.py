"""`spectune detect`: the devices that could be tuned on."""

from __future__ import annotations

import click

from autotune.cli import output


@click.command(name="detect", short_help="Find the devices.")
@click.option(
    "--device",
    "requested",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="auto takes the first visible GPU, else the CPU; cuda insists on a GPU.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(requested: str, as_json: bool) -> None:
    """Find the devices and say which one would be tuned on, and why."""
    from autotune.device.detection import detect
    from autotune.report.devices import detection_json

    detection = detect("cpu" if requested == "cpu" else "cuda" if requested == "cuda" else "auto")
    if as_json:
        output.print_json(detection_json(detection))
        return
    from autotune.cli.views.devices import print_detection

    print_detection(output.make_console(), detection)

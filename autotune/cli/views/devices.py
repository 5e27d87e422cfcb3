"""Devices for people."""

from __future__ import annotations

from rich.console import Console

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.device.detection import Detection


def print_detection(console: Console, detection: Detection) -> None:
    """Print the devices, what was lost, and what the operator should know."""
    table = new_table("Devices (> is tuned on)")
    add_columns(table, "device", "kind")
    add_columns(table, "memory", "cores", "compute\ncapability", figures=True)
    add_columns(table, "slice", "power limit", "driver", "instruction sets")
    for device in detection.devices:
        power = device.power_limit_watts
        table.add_row(
            f"{'> ' if device == detection.chosen else '  '}{device.name}",
            device.kind,
            words.memory(device.memory_bytes),
            words.NONE if device.cores is None else str(device.cores),
            device.compute_capability or words.NONE,
            device.mig_profile or words.NONE,
            words.NONE if power is None else f"{power:.0f} W",
            device.driver or words.NONE,
            " ".join(device.isa) or words.NONE,
        )
    print_table(console, table)
    for note in detection.notes:
        console.print(note, soft_wrap=True)

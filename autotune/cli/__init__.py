"""The command line: `spectune`."""

from __future__ import annotations


def main() -> None:
    """Run `spectune` and leave with one of the codes in `autotune.cli.exits`."""
    from autotune.cli.root import spectune

    spectune.main()

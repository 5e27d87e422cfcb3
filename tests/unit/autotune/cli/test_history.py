"""`spectune history`: generations, newest first."""

from __future__ import annotations

import json
from pathlib import Path

from store.repository import Store
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run


def test_newest_first(run: Run, fill: Fill, store_path: Path) -> None:
    """Every generation with what it loads, the last one on top."""
    fill()
    with Store.open(store_path, clock=lambda: samples.CREATED) as repo:
        samples.publish(repo, samples.OFF_ENVELOPE)
    found = json.loads(run("history", "--json").stdout)
    assert [(row["generation"], row["drafter"]) for row in found] == [(2, "off"), (1, "ngram")]
    assert found[1]["num_speculative_tokens"] == {"1": 3, "16": 0}
    assert found[1]["num_validated"] == 1
    lines = run("history").stdout.splitlines()
    second, first = [line.split() for line in lines if samples.RUN_ID in line]
    assert (second[0], first[0]) == ("2", "1")
    assert ["2026-03-01", "12:00", "ngram", "1:", "3,", "16:", "0", "1", "of", "2"] == first[1:11]


def test_limit(run: Run, fill: Fill, store_path: Path) -> None:
    """Only as many as asked for."""
    fill()
    with Store.open(store_path) as repo:
        samples.publish(repo, samples.OFF_ENVELOPE)
    found = json.loads(run("history", "--limit", "1", "--json").stdout)
    assert [row["generation"] for row in found] == [2]

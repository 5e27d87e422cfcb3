"""`spectune show`: the document for people and for programs."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from autotune.cli.output import make_console
from autotune.cli.views.publication import print_publication
from store import reader
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run

CHOICES = """\
Choice per measured batch size (workload: default)

                                      off        on         on
 batch                           measured  measured  predicted  speed-up over off
  size  choice                   tokens/s  tokens/s   tokens/s  (95 % interval)       status
 ─────────────────────────────────────────────────────────────────────────────────────────────────
     1  ngram K=3                   100.0     150.0      143.0  1.50x (1.49 to 1.51)  validated
    16  ngram K=0 (off)             100.0     100.0      143.0  1.00x (0.99 to 1.01)  provisional
          best tried: ngram K=3     100.0      81.0          -  0.81x (0.80 to 0.82)  not used
"""

SCHEDULE = """\
  batch size  K  how                  rests on        status
 ─────────────────────────────────────────────────────────────────
           1  3  speculates           a measurement   validated
     2 to 15  0  off, drafter loaded  the rule below  provisional
          16  0  off, drafter loaded  a measurement   provisional
 17 and more  0  off, drafter loaded  the rule below  provisional
"""


def plain(text: str) -> str:
    """Without the blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_tables(run: Run, fill: Fill) -> None:
    """Choices with both measured rates and the prediction apart, then every batch size."""
    fill()
    result = run("show")
    assert result.exit_code == 0
    assert CHOICES in plain(result.stdout)
    assert SCHEDULE in plain(result.stdout)
    assert "Between two measured batch sizes: the smaller K of the two." in result.stdout
    assert "ngram is a made-up choice." in result.stdout
    assert result.stderr == ""


def test_off_has_no_rate_of_its_own(run: Run, fill: Fill) -> None:
    """Where off is published, its speed is the baseline of the best that was tried."""
    fill(samples.OFF_ENVELOPE)
    lines = plain(run("show").stdout).splitlines()
    off = next(line for line in lines if line.startswith("     1  off"))
    assert off.split() == ["1", "off", "100.0", "-", "-", "-", "validated"]
    assert "no drafter (speculation off)" in "\n".join(lines)


def test_figures_survive_a_narrow_window(
    run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of 40 columns makes lines longer than it, and cuts nothing."""
    monkeypatch.setenv("COLUMNS", "40")
    fill()
    assert CHOICES in plain(run("show").stdout)


@pytest.mark.parametrize(("source", "warned"), [("default", True), ("file:mine.jsonl", False)])
def test_shipped_workload_is_named(run: Run, fill: Fill, source: str, warned: bool) -> None:
    """Both tables name the workload, and the shipped one brings a warning (bug report B9)."""
    fill(source=source)
    text = run("show").stdout
    assert text.count(f"(workload: {source})") == 2
    assert ("not on your traffic" in text) is warned


def test_json_is_the_stored_document(run: Run, fill: Fill, store_path: Path) -> None:
    """The very bytes that are served, and nothing beside them."""
    fill()
    result = run("show", "--json")
    assert result.stdout_bytes == reader.newest(store_path)[0].document
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("batch", "k", "rests"),
    [
        ("1", 3, "measured, validated"),
        ("5", 0, "not measured"),
        ("16", 0, "measured, provisional"),
        ("9999", 0, "not measured"),
    ],
)
def test_batch(run: Run, fill: Fill, batch: str, k: int, rests: str) -> None:
    """One batch size by the documented rule, the same for people and programs (bug report B14)."""
    fill()
    text = run("show", "--batch", batch).stdout
    assert text == (f"batch size {batch}: K = {k}, drafter ngram ({rests}; workload: default)\n")
    cell = json.loads(run("show", "--batch", batch, "--json").stdout)
    assert (cell["batch_size"], cell["num_speculative_tokens"]) == (int(batch), k)


@pytest.mark.parametrize("batch", ["0", "-4"])
def test_batch_below_one_is_refused(run: Run, fill: Fill, batch: str) -> None:
    """No batch has fewer than one request."""
    fill()
    result = run("show", "--batch", batch)
    assert result.exit_code == 2
    assert f"batch size = {batch}: must be 1 or more" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("age", "told"),
    [
        (timedelta(seconds=5), "less than a minute ago; expires in 6 days"),
        (timedelta(hours=26), "1 day ago; expires in 5 days, due for another look"),
        (timedelta(days=9), "9 days ago; EXPIRED 2 days ago (on expiry: keep)"),
    ],
)
def test_age(
    fill: Fill,
    store_path: Path,
    capsys: pytest.CaptureFixture[str],
    age: timedelta,
    told: str,
) -> None:
    """The header says how old the document is and whether it still holds."""
    fill()
    publication = reader.newest(store_path)[0]
    config = samples.published_config(publication)
    print_publication(make_console(), config, publication, samples.CREATED + age)
    assert told in capsys.readouterr().out

"""`spectune explain`: candidates, figures and reasons of one batch size."""

from __future__ import annotations

import json

import pytest

from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run
from tests.unit.autotune.cli.test_show import plain

CANDIDATES = """\
 > ngram K=3               prior 1x, sampler 1x     100.0      150.0      143.0  \
1.50x (1.48 to 1.52); 5  1.50x (1.49 to 1.51); 20  -
   layer-skip-8 K=2 T=0.7  sampler 1x               100.0      121.0          -  \
1.21x (1.19 to 1.24); 3  -                         disturbed blocks: 1
   layer-skip-8 K=5        -                            -          -          -  \
-                        -                         logits [that] are not finite
"""


def test_measured_size(run: Run, fill: Fill) -> None:
    """Who proposed what how often, with what result; failures and disturbed blocks are told."""
    fill()
    text = plain(run("explain", "1").stdout)
    assert text.startswith(
        "Batch size 1: K = 3 (validated, workload: default)\n"
        "Made-up reason for batch size 1.\nngram is a made-up choice.\n"
    )
    assert CANDIDATES in text
    assert "The model predicted 3 arms at this batch size; 3 were tried." in text


def test_published_figures_come_out_of_the_ledger(run: Run, fill: Fill) -> None:
    """The figure of the document can be recomputed from the stored blocks."""
    fill()
    found = json.loads(run("explain", "1", "--json").stdout)
    chosen = next(arm for arm in found["candidates"] if arm["chosen"])
    assert chosen["validated"] == found["evidence"]["measured"]
    assert chosen["num_trials"] == {"prior": 1, "sampler": 1}


def test_size_that_was_not_measured(run: Run, fill: Fill) -> None:
    """The rule and both measured neighbours, in words and as data."""
    fill()
    text = run("explain", "5").stdout
    assert "Batch size 5 was not measured. Between two measured batch sizes" in text
    assert "The nearest measured sizes have K = 3 at 1 and K = 0 at 16." in text
    assert "At batch size 16: Made-up reason for batch size 16." in text
    found = json.loads(run("explain", "5", "--json").stdout)
    assert found["measured"] is False
    assert found["num_speculative_tokens"] == 0
    assert [one["batch_size"] for one in found["neighbours"]] == [1, 16]
    assert found["candidates"] == []


def test_size_in_the_tail(run: Run, fill: Fill) -> None:
    """Above the largest measured size there is one neighbour."""
    fill()
    found = json.loads(run("explain", "64", "--json").stdout)
    assert [one["batch_size"] for one in found["neighbours"]] == [16]


def test_idle_drafter_is_marked(run: Run, fill: Fill) -> None:
    """At K = 0 the idle drafter is the published arm, and its own measurement is shown."""
    fill()
    lines = run("explain", "16").stdout.splitlines()
    marked = [line for line in lines if line.startswith(" > ")]
    assert [line.split()[:3] for line in marked] == [[">", "ngram", "K=0"]]


def test_off_is_never_a_row(run: Run, fill: Fill) -> None:
    """Speculation off is the baseline of every block, so no candidate is marked."""
    fill(samples.OFF_ENVELOPE)
    text = run("explain", "1").stdout
    assert "\n > " not in text
    assert "speculation off has no row of its own" in text


@pytest.mark.parametrize("batch", ["0", "-3", "9" * 30])
def test_impossible_size(run: Run, fill: Fill, batch: str) -> None:
    """A size that no batch can have is refused in one line."""
    fill()
    result = run("explain", "--", batch)
    assert result.exit_code == 2
    assert result.stderr.startswith("spectune explain: Invalid value for BATCH: ")
    assert result.stderr.count("\n") == 1

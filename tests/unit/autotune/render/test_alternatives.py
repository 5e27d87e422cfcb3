"""Other envelopes of a run, as candidates for a renderer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.render.alternatives import DrafterParts, alternatives, drafter_parts
from autotune.render.candidate import Candidate
from autotune.report.arms import tried_arms
from autotune.settings import TuneSettings
from policies.types import SpeculativeConfig
from tests.unit.autotune.cli.samples import LEDGER, NGRAM, SKIP, blocks

PARTS = {
    "ngram": DrafterParts(
        method="ngram", parameters={"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    ),
    "layer-skip-8": DrafterParts(method="layer_skip", parameters={"num_layers": 8}),
}


def ks(candidate: Candidate) -> dict[int, int]:
    """K by measured batch size."""
    return {row.batch_size: row.num_speculative_tokens for row in candidate.evidence}


def gains(candidate: Candidate) -> dict[int, float | None]:
    """Measured gain by batch size."""
    return {
        row.batch_size: None if row.measured is None else row.measured.gain
        for row in candidate.evidence
    }


def test_envelopes_of_the_ledger() -> None:
    """One candidate per drafter and draft temperature, the most promising first."""
    found = alternatives(tried_arms(LEDGER), PARTS, confidence=0.95, hot_margin=0.01)
    assert [(c.envelope.drafter, c.envelope.draft_temperature) for c in found] == [
        ("ngram", None),
        ("layer-skip-8", 0.7),
    ]
    ngram, skip = found
    assert ks(ngram) == {1: 3, 16: 0}
    assert ks(skip) == {1: 2, 16: 2}
    assert ngram.envelope.draft_parameters == {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    assert (skip.envelope.method, skip.envelope.max_num_speculative_tokens) == ("layer_skip", 2)


def test_figures_are_the_ledgers() -> None:
    """Fresh blocks where there are any, the search's otherwise, the idle drafter at K = 0."""
    ngram, skip = alternatives(tried_arms(LEDGER), PARTS, confidence=0.95, hot_margin=0.01)
    assert gains(ngram) == pytest.approx({1: 0.5, 16: 0.0})
    assert gains(skip) == pytest.approx({1: 0.21, 16: 0.05})
    assert ngram.evidence[0].measured is not None
    assert ngram.evidence[0].measured.num_blocks == 20


def test_nothing_is_validated() -> None:
    """What was picked in the search is provisional in every cell, K = 0 and the tail included."""
    for candidate in alternatives(tried_arms(LEDGER), PARTS, confidence=0.95, hot_margin=0.01):
        assert {cell.status for cell in candidate.schedule} == {"provisional"}
        assert {row.status for row in candidate.evidence} == {"provisional"}
        assert candidate.schedule[-1].bs_hi is None
        assert candidate.schedule[-1].num_speculative_tokens == 0


def test_limit_on_k_picks_the_best_within_it() -> None:
    """A server's limit leaves the best smaller K, not a lowered larger one."""
    smaller = SpeculativeConfig(drafter="ngram", num_speculative_tokens=1)
    arms = tried_arms([*LEDGER, *blocks(1, smaller, [110, 111, 112])])
    found = alternatives(
        arms, PARTS, confidence=0.95, hot_margin=0.01, max_num_speculative_tokens=1
    )
    assert [ks(candidate) for candidate in found] == [{1: 1, 16: 0}]
    assert gains(found[0])[1] == pytest.approx(0.11)


def test_idle_cost_that_was_not_measured_is_absent() -> None:
    """At K = 0 without a measurement there is no figure, rather than none lost."""
    arms = tried_arms([*blocks(1, NGRAM, [150, 151]), *blocks(4, NGRAM, [80, 81])])
    (found,) = alternatives(arms, PARTS, confidence=0.95, hot_margin=0.01)
    assert ks(found) == {1: 3, 4: 0}
    assert gains(found)[4] is None


def test_without_gain_or_description_there_is_none() -> None:
    """An envelope that gained nowhere, or of a drafter that cannot be described, is no offer."""
    slow = tried_arms(blocks(1, NGRAM, [90, 91, 92]))
    assert alternatives(slow, PARTS, confidence=0.95, hot_margin=0.01) == ()
    assert alternatives(tried_arms(LEDGER), {}, confidence=0.95, hot_margin=0.01) == ()
    assert alternatives((), PARTS, confidence=0.95, hot_margin=0.01) == ()


def test_parts_of_the_searchs_own_drafters(tmp_path: Path) -> None:
    """Names become what the search set up; what it does not know, or is gone, is left out."""
    small, head = tmp_path / "small", tmp_path / "head"
    for folder, architecture in ((small, "LlamaForCausalLM"), (head, "LlamaForCausalLMEagle3")):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    settings = TuneSettings.parse(
        {"drafters": {"small": small, "head": head, "removed": tmp_path / "removed"}}
    )
    names = ("off", "ngram", SKIP.drafter, "small", "head", "removed", "gone")
    parts = drafter_parts(names, settings.model_dump(mode="json"))
    assert parts == PARTS | {
        "small": DrafterParts(method="draft_model", parameters={"model": str(small)}),
        "head": DrafterParts(method="eagle3", parameters={"model": str(head)}),
    }


def test_a_few_fresh_blocks_show_nothing() -> None:
    """Four of them bound no gain that one looks at while measuring, however large it seems."""
    few = [149, 151, 150, 150]
    arms = tried_arms(
        [*blocks(1, NGRAM, few), *blocks(1, NGRAM, few, stage="validate", proposed_by="validation")]
    )
    assert alternatives(arms, PARTS, confidence=0.95, hot_margin=0.01) == ()


def test_a_gain_that_is_not_shown_is_not_offered() -> None:
    """Faster on average, but with a lower bound below the margin: an offer stays off there."""
    arms = tried_arms(blocks(1, NGRAM, [70, 160, 130]))
    assert alternatives(arms, PARTS, confidence=0.95, hot_margin=0.01) == ()

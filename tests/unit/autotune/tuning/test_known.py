"""What every search measures, whatever is believed."""

from __future__ import annotations

from autotune.tuning.known import known_cells
from tests.support.scripted_search import config
from tests.unit.autotune.test_document import WHOLE

METHODS = {"head": "eagle3", "ngram": "ngram"}


def test_rules_of_thumb() -> None:
    """K = 3 of the EAGLE-3 head up to 32 requests; off needs no cell."""
    assert known_cells(None, METHODS, (1, 32, 64)) == {
        (1, config("head", 3)): "rule",
        (32, config("head", 3)): "rule",
    }


def test_the_incumbent_comes_first() -> None:
    """Every published arm of a drafter and a batch size that this search has."""
    drafting = [cell for cell in WHOLE.evidence if cell.num_speculative_tokens]
    sizes = [cell.batch_size for cell in WHOLE.evidence]
    wanted = [
        (cell.batch_size, config(cell.drafter, cell.num_speculative_tokens, cell.draft_temperature))
        for cell in drafting
    ]
    methods = {cell.drafter: "ngram" for cell in drafting} | METHODS

    found = known_cells(WHOLE, methods, sizes)

    assert drafting
    assert list(found)[: len(wanted)] == wanted
    assert {found[cell] for cell in wanted} == {"incumbent"}
    assert (
        known_cells(WHOLE, METHODS | {"other": "ngram"}, [max(sizes) + 1]).keys().isdisjoint(wanted)
    )


def test_drafters_that_are_gone_are_left_out() -> None:
    """What was published with another drafter is no cell of this search."""
    sizes = [cell.batch_size for cell in WHOLE.evidence]
    assert known_cells(WHOLE, {}, sizes) == {}

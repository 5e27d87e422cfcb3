"""The published rules of thumb."""

from __future__ import annotations

import pytest

from policies.rules_of_thumb import OFF_ABOVE, rule_of_thumb


@pytest.mark.parametrize(
    ("method", "batch_size", "wanted"),
    [
        ("eagle3", 1, 3),
        ("eagle3", OFF_ABOVE, 3),
        ("eagle3", OFF_ABOVE + 1, 0),
        ("ngram", 4, None),
        ("ngram", 64, 0),
    ],
)
def test_advice(method: str, batch_size: int, wanted: int | None) -> None:
    """K = 3 for EAGLE-3, off above 32, and nothing where nothing is advised."""
    assert rule_of_thumb(method, batch_size) == wanted

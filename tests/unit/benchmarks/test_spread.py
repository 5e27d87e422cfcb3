"""Medians and ratios over interleaved blocks."""

from __future__ import annotations

import pytest

from tests.benchmarks.spread import Spread, ratio, spread


def test_median_and_range() -> None:
    """An even number of values has the mean of the middle two."""
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.0, 4.0)


def test_ratios_are_taken_block_by_block() -> None:
    """A drift that hits both alike does not show, as it would in a ratio of medians."""
    assert ratio([10.0, 40.0, 90.0], [5.0, 20.0, 30.0]) == Spread(2.0, 2.0, 3.0)


def test_blocks_must_pair_up() -> None:
    """A missing run would compare different moments."""
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])

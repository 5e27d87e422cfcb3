"""Pairs of chains over tiny vocabularies, chosen and random, on which rules are proven."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.laws import Dist, dist, one_hot

# Each entry: rows of the target's table, rows of the draft's. Tables of different lengths make
# every context its own.
CATALOGUE = {
    "binary": ([dist(3, 2), dist(1, 4), dist(2, 1)], [dist(1, 1), dist(5, 1)]),
    "skewed draft": (
        [dist(6, 2, 1, 1), dist(1, 1, 5, 3), dist(2, 2, 2, 1)],
        [dist(7, 2, 1, 1), dist(1, 9, 1, 1)],
    ),
    "draft ahead, then behind": (
        [dist(5, 3, 2), dist(6, 3, 1)],
        [dist(6, 2, 2), dist(2, 2, 6)],
    ),
    "draft equals target": ([dist(3, 1, 2), dist(1, 5, 1)], [dist(3, 1, 2), dist(1, 5, 1)]),
    "disjoint supports": ([dist(1, 2, 0, 0), dist(0, 3, 1, 0)], [dist(0, 0, 1, 1)]),
    "certain target": ([one_hot(3, 1), one_hot(3, 2), one_hot(3, 0)], [dist(1, 2, 2)]),
    "certain draft": ([dist(2, 3, 4), dist(4, 1, 1)], [one_hot(3, 2), one_hot(3, 0)]),
    "target with zeros": ([dist(3, 0, 1), dist(0, 1, 1)], [dist(1, 1, 1), dist(0, 3, 1)]),
    "draft with zeros": ([dist(1, 1, 2), dist(5, 2, 1)], [dist(0, 1, 1), dist(2, 0, 1)]),
}


def dists(size: int) -> st.SearchStrategy[Dist]:
    """Distributions with small denominators, zeros and certainties included."""
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    return weights.filter(any).map(lambda w: dist(*w))


@st.composite
def tables(draw: st.DrawFn, max_vocab: int) -> tuple[list[Dist], list[Dist]]:
    """A target's and a draft's table over one vocabulary."""
    size = draw(st.integers(2, max_vocab))
    return (
        draw(st.lists(dists(size), min_size=1, max_size=4)),
        draw(st.lists(dists(size), min_size=1, max_size=3)),
    )

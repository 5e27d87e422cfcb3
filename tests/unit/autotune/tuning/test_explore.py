"""What is measured next, on beliefs whose samples are given one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import cast

import numpy as np
import pytest
from scipy import stats

from autotune.tuning.belief import Belief, Cell, Floats
from autotune.tuning.explore import TOLERANCE, Choice, Explorer
from policies.types import OFF, SpeculativeConfig
from tests.support.scripted_search import arms_of, config, predictions

SIZES = (1, 16)
EVEN = {1: 0.5, 16: 0.5}
A1, A2, B1, B2 = config("a", 1), config("a", 2), config("b", 1), config("b", 2)
ARMS = (A1, A2, B1, B2)
A, B = ("a", None), ("b", None)
CELLS = tuple(product(SIZES, ARMS))

Gains = Mapping[Cell, float]


class FakeBelief:
    """A belief that is told what it believes.

    Samples are `mean` with some cells replaced, in turn over `samples_`.
    """

    def __init__(
        self,
        mean: Gains,
        others: Sequence[Gains] = (),
        variance: Mapping[Cell, float] | None = None,
        block_sds: Mapping[int, float] | None = None,
    ) -> None:
        self.cells = CELLS
        self.index = {cell: i for i, cell in enumerate(CELLS)}
        self._mean = mean
        self._others = others or [{}]
        self._variance = variance or {}
        self._block_sds = block_sds or {}

    def mean(self) -> Floats:
        """Expected gains; -1 where none is given."""
        return self._row({})

    def samples(self, count: int) -> Floats:
        """What may be instead, each as often as the others."""
        rows = [self._row(other) for other in self._others]
        return np.stack([rows[i % len(rows)] for i in range(count)])

    def variance(self) -> Floats:
        """0.01 where nothing else is given."""
        return np.array([self._variance.get(cell, 0.01) for cell in CELLS])

    def block_sd(self, batch_size: int) -> float:
        """0.07 where nothing else is given."""
        return self._block_sds.get(batch_size, 0.07)

    def _row(self, other: Gains) -> Floats:
        gains = {**self._mean, **other}
        return np.array([gains.get(cell, -1.0) for cell in CELLS])


def exploring(belief: FakeBelief, weights: Mapping[int, float] = EVEN, seed: int = 0) -> Explorer:
    """An explorer of that belief."""
    return Explorer(cast(Belief, belief), ARMS, weights, seed)


MEAN: Gains = {(1, A1): 0.2, (1, A2): 0.3, (16, A1): 0.1, (1, B1): 0.25, (16, B2): 0.12}


# ---------------------------------------------------------------- the choice


def test_the_choice_is_one_kind_with_its_best_k_everywhere() -> None:
    """Drafter a is worth 0.4 / 2 and b 0.37 / 2: a, with another K at each batch size."""
    assert exploring(FakeBelief(MEAN)).choice() == Choice(A, {1: A2, 16: A1})


def test_weights_change_the_choice() -> None:
    """Where the traffic is counts."""
    weights = {1: 0.2, 16: 0.8}
    assert exploring(FakeBelief(MEAN), weights).choice() == Choice(B, {1: B1, 16: B2})


def test_off_takes_the_batch_sizes_where_nothing_gains() -> None:
    """A loss in no K of the kind is part of the choice."""
    found = exploring(FakeBelief({(1, A1): 0.2, (16, A1): -0.1, (16, A2): -0.2})).choice()
    assert found == Choice(A, {1: A1, 16: OFF})


def test_losses_are_not_held_against_a_kind() -> None:
    """K = 0 takes their place: a with 0.3 and -0.5 beats b with 0.1 and 0.1."""
    mean = {(1, A1): 0.3, (16, A1): -0.5, (1, B1): 0.1, (16, B1): 0.1}
    assert exploring(FakeBelief(mean)).choice().kind == A


@pytest.mark.parametrize("gain", [-0.1, 0.0])
def test_off_beats_all(gain: float) -> None:
    """Where no arm gains anything nothing is loaded."""
    mean = dict.fromkeys(CELLS, gain)
    assert exploring(FakeBelief(mean)).choice() == Choice(None, {1: OFF, 16: OFF})


def test_what_was_refused_is_not_chosen_again() -> None:
    """The next best comes, then off."""
    explorer = exploring(FakeBelief(MEAN))
    assert explorer.choice(frozenset({A})) == Choice(B, {1: B1, 16: B2})
    assert explorer.choice(frozenset({A, B})).kind is None


def test_a_discarded_drafter_is_gone() -> None:
    """From the choice and from the proposals; without any drafter there is nothing to do."""
    explorer = exploring(FakeBelief(MEAN, [{(1, A1): 0.9}, {(16, B1): 0.9}]))
    explorer.discard("a")
    assert explorer.choice() == Choice(B, {1: B1, 16: B2})
    assert {explorer.propose() for _ in range(20)} <= set(product(SIZES, (B1, B2)))
    explorer.discard("b")
    assert explorer.choice().kind is None
    assert explorer.propose() is None


def test_draft_temperatures_are_kinds_of_their_own() -> None:
    """One server drafts at one temperature: K may not be mixed across them."""
    arms = (config("a", 1), config("a", 1, 0.7))
    belief = Belief({(1, arms[0]): 0.1, (1, arms[1]): 0.2}, 0)
    explorer = Explorer(belief, arms, {1: 1.0}, 0)
    assert explorer.choice() == Choice(("a", 0.7), {1: arms[1]})
    assert explorer.choice(frozenset({("a", 0.7)})) == Choice(("a", None), {1: arms[0]})
    explorer.discard("a")
    assert explorer.choice().kind is None


def test_the_arm_of_a_kind() -> None:
    """The best K at a batch size, or off."""
    explorer = exploring(FakeBelief(MEAN))
    assert [explorer.arm(A, 1), explorer.arm(B, 16)] == [A2, B2]
    assert exploring(FakeBelief({(1, A1): 0.1})).arm(A, 16) == OFF


def test_the_favourite_of_a_batch_size() -> None:
    """The best expected arm of all kinds, even where all lose; none without drafters."""
    explorer = exploring(FakeBelief({(1, A1): 0.2, (1, B1): 0.25, (16, A2): -0.3}))
    assert [explorer.favourite(1), explorer.favourite(16)] == [B1, A2]
    explorer.discard("b")
    assert explorer.favourite(1) == A1
    explorer.discard("a")
    assert explorer.favourite(1) is None


# ---------------------------------------------------------------- the proposal


def test_no_doubt_no_proposal() -> None:
    """All samples agree with the choice."""
    assert exploring(FakeBelief(MEAN)).propose() is None


@pytest.mark.parametrize(
    ("share", "lead", "proposes"),
    [
        (4, 0.1, True),
        (3, 0.1, False),
        (4, 2.1 * TOLERANCE, True),
        (96, 1.9 * TOLERANCE, False),
    ],
)
def test_hardly_any_doubt_is_none(share: int, lead: float, proposes: bool) -> None:
    """Two of a hundred samples may find the choice too low by more than the tolerance.

    Of 192 samples 4 are more than that and 3 are not. The lead of another kind at one batch size
    is weighted, here by one half.
    """
    other = {(1, B1): 0.35 + lead, (16, B1): 0.05}
    others = [other] * share + [{}] * (192 - share)
    belief = FakeBelief({(1, A1): 0.35, (16, A1): 0.05}, others)

    assert (exploring(belief).propose() is not None) is proposes


def test_another_k_is_doubted_where_it_leads_most() -> None:
    """In the sample a gains 0.1 more with K = 1 at batch 1, and 0.05 more with K = 2 at 16."""
    sample = {(1, A1): 0.4, (16, A2): 0.15}
    found = {exploring(FakeBelief(MEAN, [sample]), seed=seed).propose() for seed in range(5)}
    assert found <= {(1, A1), (1, A2)}


@pytest.mark.parametrize("certain", [A1, A2])
def test_of_the_two_arms_the_less_certain_is_measured(certain: SpeculativeConfig) -> None:
    """Where another block teaches more: at equal noise, where the variance is larger."""
    belief = FakeBelief(MEAN, [{(1, A1): 0.5}], {(1, certain): 0.001})
    assert exploring(belief).propose() == (1, A2 if certain == A1 else A1)


def test_a_block_teaches_little_where_it_is_noisy() -> None:
    """The choice of K at both sizes is wrong and should be off: the quieter size comes first."""
    mean = {(1, A1): 0.1, (16, A1): 0.1}
    sample = {(1, A1): -0.2, (16, A1): -0.2}
    for noisy, quiet in ((1, 16), (16, 1)):
        belief = FakeBelief(mean, [sample], block_sds={noisy: 0.3})
        # Within the kind both lead alike, and off needs no block.
        assert exploring(belief, {quiet: 0.6, noisy: 0.4}).propose() == (quiet, A1)


def test_off_itself_is_never_measured() -> None:
    """Where off may be better, the chosen arm is what is doubted."""
    belief = FakeBelief({(1, A1): 0.1}, [{(1, A1): -0.3}])
    assert exploring(belief).propose() == (1, A1)


def test_where_off_is_chosen_the_arm_that_may_gain_is_measured() -> None:
    """The choice loads nothing; a sample in which b gains at batch 16 asks for it."""
    belief = FakeBelief({}, [{(16, B2): 0.2}])
    assert exploring(belief).propose() == (16, B2)


def test_another_kind_is_doubted_where_it_leads_most() -> None:
    """In the sample b is worth more in all, by 0.2 at 16 and less than a at 1."""
    sample = {(16, B2): 0.4}
    belief = FakeBelief(MEAN, [sample], {(16, A1): 0.001})
    assert exploring(belief).propose() == (16, B2)


def test_samples_are_drawn_by_the_square_of_what_they_gain() -> None:
    """Null: a lead of 0.09 is followed nine times as often as one of 0.03.

    n = 2,000 explorers of two samples; exact binomial test at alpha = 1e-6, power above 0.999
    against a drawing in proportion to the gain.
    """
    mean = {(1, A1): 0.1, (16, A1): 0.1}
    others = [{(1, A2): 0.13}, {(16, A2): 0.19}]
    variance = {(1, A1): 1e-6, (16, A1): 1e-6}
    n = 2_000

    found = Counter(
        exploring(FakeBelief(mean, others, variance), seed=seed).propose() for seed in range(n)
    )

    assert set(found) == {(1, A2), (16, A2)}
    assert stats.binomtest(found[16, A2], n, 0.9).pvalue > 1e-6
    assert stats.binomtest(found[16, A2], n, 0.75).pvalue < 1e-6


def test_within_a_kind_only_k_is_doubted() -> None:
    """What is loaded stands, however much another drafter may gain."""
    belief = FakeBelief(MEAN, [{(1, B1): 0.9, (16, A2): 0.2}])
    explorer = exploring(belief)
    assert explorer.propose_within(A, {1: A2, 16: A1}) in {(16, A1), (16, A2)}
    assert explorer.propose_within(A, {1: A2, 16: A2}) is None
    assert explorer.propose_within(A, {1: A2, 16: OFF}) == (16, A2)


def test_within_a_kind_doubts_end_as_well() -> None:
    """All samples agree."""
    assert exploring(FakeBelief(MEAN)).propose_within(A, {1: A2, 16: A1}) is None


# ---------------------------------------------------------------- with a real belief


def truth(arm: SpeculativeConfig, size: int) -> float:
    """Drafter b at K = 3 is the best, and gains less at the larger batch size."""
    best = {"a": 0.1, "b": 0.3, "c": -0.1}[arm.drafter]
    return best - 0.04 * abs(arm.num_speculative_tokens - 3) - (0.15 if size == 16 else 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_measuring_what_is_proposed_finds_the_best(seed: int) -> None:
    """Without noise, and a prior that prefers a by 0.1: at the end no doubt, and b with its K.

    Every proposal is an arm that speculates, at a batch size of the search.
    """
    arms = arms_of("a", "b", "c", largest=6)
    error = {"a": 0.15, "b": -0.15, "c": 0.0}
    predicted = predictions(arms, SIZES, lambda arm, size: truth(arm, size) + error[arm.drafter])
    belief = Belief(predicted, seed)
    explorer = Explorer(belief, arms, EVEN, seed)
    assert explorer.choice().kind == ("a", None)

    count = 0
    while (cell := explorer.propose()) is not None:
        assert cell in predicted
        belief.observe(cell, truth(cell[1], cell[0]))
        count += 1

    assert 2 < count < 200
    found = explorer.choice()
    assert found.kind == ("b", None)
    for size, arm in found.arms.items():
        assert truth(arm, size) >= truth(config("b", 3), size) - 0.04


def test_the_seed_decides_the_proposals() -> None:
    """Same belief and seed, same sequence of cells."""
    arms = arms_of("a", "b", largest=4)

    def proposals(seed: int) -> list[Cell | None]:
        explorer = Explorer(
            Belief(predictions(arms, SIZES, lambda arm, size: 0.1), 7), arms, EVEN, seed
        )
        return [explorer.propose() for _ in range(12)]

    assert proposals(1) == proposals(1) != proposals(2)

"""Ranking envelopes and naming finalists."""

from __future__ import annotations

import math

import pytest

from policies.choose import choose_envelope, finalists
from policies.types import OFF_DRAFTER, CellEvidence, Envelope, Margins
from tests.unit.policies.builders import arm, estimate

NGRAM = Envelope(drafter="ngram", max_num_speculative_tokens=8)


def explored(batch_size: int, tokens: int, gain: float, **kind: str | float) -> CellEvidence:
    """An arm that was measured in the search only."""
    return arm(batch_size, tokens, explored=estimate(gain), **kind)  # type: ignore[arg-type]


def test_score_takes_the_best_k_at_each_batch_size() -> None:
    """The score is the weighted sum of the best log gains, and off scores 0."""
    ranking = choose_envelope(
        [explored(1, 2, 0.2), explored(1, 4, 0.5), explored(8, 2, 0.1), explored(8, 4, -0.3)]
    )
    assert [score.envelope.drafter for score in ranking] == ["ngram", OFF_DRAFTER]
    assert ranking[0].log_gain == pytest.approx((math.log(1.5) + math.log(1.1)) / 2)
    assert ranking[0].gain == pytest.approx(math.sqrt(1.5 * 1.1) - 1)
    assert ranking[0].envelope.max_num_speculative_tokens == 4
    assert ranking[1].log_gain == 0


def test_weights_change_the_winner() -> None:
    """A drafter that wins where the traffic is beats one that wins elsewhere."""
    evidence = [
        explored(1, 2, 0.5, drafter="draft"),
        explored(16, 2, -0.1, drafter="draft"),
        explored(1, 2, 0.1, drafter="ngram"),
        explored(16, 2, 0.2, drafter="ngram"),
    ]
    assert choose_envelope(evidence)[0].envelope.drafter == "draft"
    assert choose_envelope(evidence, {1: 1, 16: 9})[0].envelope.drafter == "ngram"


def test_idle_cost_counts_where_no_k_is_better() -> None:
    """A drafter that slows the large batch down while idle pays for it in its score."""
    ranking = choose_envelope([explored(1, 2, 0.1), explored(16, 2, -0.4), explored(16, 0, -0.2)])
    assert [score.envelope.drafter for score in ranking] == [OFF_DRAFTER, "ngram"]
    assert ranking[1].log_gain == pytest.approx((math.log(1.1) + math.log(0.8)) / 2)


def test_draft_temperatures_are_separate_envelopes() -> None:
    """One server drafts at one temperature, so K may not be mixed across them."""
    ranking = choose_envelope(
        [
            explored(1, 2, 0.3, drafter="draft", draft_temperature=0.7),
            explored(1, 2, 0.2, drafter="draft"),
            explored(1, 2, 0.1, drafter="draft", draft_temperature=0.0),
        ]
    )
    assert [score.envelope.draft_temperature for score in ranking[:3]] == [0.7, None, 0.0]


def test_off_wins_a_tie() -> None:
    """Nothing is loaded for a gain of exactly nothing."""
    assert choose_envelope([explored(1, 2, 0.0)])[0].envelope == Envelope()


def test_no_evidence_leaves_off() -> None:
    """An empty search ranks off alone."""
    assert [score.envelope for score in choose_envelope([])] == [Envelope()]


def test_finalists_are_the_best_explored() -> None:
    """The best K per batch size goes on; a size without a gain has none."""
    evidence = [
        explored(1, 2, 0.2),
        explored(1, 4, 0.5),
        explored(8, 2, 0.1),
        explored(16, 2, -0.1),
        arm(32, 2),
    ]
    assert finalists(evidence, NGRAM) == {1: 4, 8: 2, 16: None, 32: None}


def test_finalists_prefer_the_smaller_k_in_a_tie() -> None:
    """K = 2 within 1 % of K = 5 is the finalist; K = 3 further off is not."""
    assert finalists([explored(1, 2, 0.395), explored(1, 5, 0.40)], NGRAM) == {1: 2}
    assert finalists([explored(1, 3, 0.38), explored(1, 5, 0.40)], NGRAM) == {1: 5}
    assert finalists([explored(1, 3, 0.38), explored(1, 5, 0.40)], NGRAM, Margins(tie=0.02)) == {
        1: 3
    }


def test_a_tie_never_prefers_a_loss() -> None:
    """An arm slower than off is no finalist, however close to the best it is."""
    assert finalists([explored(1, 1, -0.001), explored(1, 2, 0.005)], NGRAM) == {1: 2}


def test_finalists_fit_the_ranked_envelope() -> None:
    """The envelope of the ranking is wide enough for the finalists it leads to."""
    evidence = [explored(1, 5, 0.40), explored(1, 4, 0.395), explored(1, 3, 0.3855)]
    envelope = choose_envelope(evidence)[0].envelope
    assert finalists(evidence, envelope) == finalists(evidence, NGRAM) == {1: 4}


def test_finalists_of_another_envelope_are_left_out() -> None:
    """Arms of another drafter, draft temperature or larger K do not count."""
    evidence = [
        explored(1, 2, 0.5, drafter="draft"),
        explored(1, 2, 0.4, draft_temperature=0.7),
        explored(1, 9, 0.3),
        explored(1, 1, 0.1),
    ]
    assert finalists(evidence, NGRAM) == {1: 1}
    assert finalists(evidence, Envelope()) == {1: None}


def test_the_same_arm_twice_is_refused() -> None:
    """Two estimates of one arm would let the luckier one win."""
    with pytest.raises(ValueError, match="ngram K=2 at batch size 4 occurs 2 times"):
        choose_envelope([explored(4, 2, 0.1), explored(4, 2, 0.2)])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({2: 1.0}, r"weights for batch sizes \[2\]: only \[1\] were measured"),
        ({1: -1.0}, "weight of batch size 1 = -1.0"),
        ({1: math.nan}, "weight of batch size 1 = nan"),
        ({1: 0.0}, "weights of all batch sizes are 0"),
    ],
)
def test_weights_without_meaning_are_refused(weights: dict[int, float], message: str) -> None:
    """Weights must be non-negative and belong to measured sizes."""
    with pytest.raises(ValueError, match=message):
        choose_envelope([explored(1, 2, 0.1)], weights)


def test_batch_sizes_start_at_one() -> None:
    """B14: evidence at batch size 0 is refused."""
    with pytest.raises(ValueError, match="batch_size = 0: must be 1 or more"):
        explored(0, 2, 0.1)

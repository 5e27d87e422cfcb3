"""The ledger of a run, pooled arm by arm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.report.arms import TriedArm, tried_arms
from policies.estimate import paired_estimate
from policies.types import Block, SpeculativeConfig
from tests.contract.store_samples import make_failure, make_measurement, make_prediction
from tests.unit.autotune.cli.samples import FAILED, LEDGER, NGRAM, RUN_ID, SKIP, blocks


def find(arms: tuple[TriedArm, ...], batch_size: int, config: SpeculativeConfig) -> TriedArm:
    """The one arm that is asked for."""
    (found,) = [arm for arm in arms if (arm.batch_size, arm.config) == (batch_size, config)]
    return found


def test_blocks_are_pooled_by_stage() -> None:
    """Search and fresh blocks give two estimates, each from all blocks of its stage."""
    arm = find(tried_arms(LEDGER), 1, NGRAM)
    expected = paired_estimate(
        [
            Block(baseline_tokens=100, baseline_s=1.0, candidate_tokens=rate, candidate_s=1.0)
            for rate in (150, 152, 148, 151, 149)
        ]
    )
    assert arm.explored == replace(expected, log_ratios=())
    assert arm.validated is not None
    assert arm.validated.num_blocks == 20
    assert arm.estimate == arm.validated


def test_only_fresh_blocks_bound_a_gain_at_any_time() -> None:
    """As the search itself has it: what was explored was picked by its results."""
    arm = find(tried_arms(LEDGER), 1, NGRAM)
    assert arm.explored is not None
    assert arm.validated is not None
    assert arm.explored.log_ratios == ()
    assert arm.validated.log_ratios == pytest.approx(
        [math.log(rate / 100) for rate in (149, 151, 150, 150) * 5]
    )


def test_trials_are_counted_by_proposer() -> None:
    """Three blocks of one trial are one trial; fresh blocks are none."""
    arms = tried_arms(LEDGER)
    assert find(arms, 1, NGRAM).num_trials == {"prior": 1, "sampler": 1}
    assert find(arms, 16, SKIP).num_trials == {"sampler": 1}


def test_disturbed_blocks_count_for_nothing() -> None:
    """They are told, and change no figure."""
    arm = find(tried_arms(LEDGER), 1, SKIP)
    assert arm.num_disturbed == 1
    assert arm.explored is not None
    assert arm.explored.num_blocks == 3
    alone = tried_arms(blocks(1, SKIP, [100, 100, 100], disturbed=True))
    assert find(alone, 1, SKIP).estimate is None


def test_one_block_is_no_estimate() -> None:
    """A spread needs two."""
    assert find(tried_arms(blocks(1, NGRAM, [150])), 1, NGRAM).explored is None


def test_failures_and_predictions_find_their_arm() -> None:
    """An arm that only failed is there; one that was only predicted is not."""
    failure = make_failure(
        RUN_ID,
        batch_size=1,
        drafter=FAILED.drafter,
        num_speculative_tokens=5,
        draft_temperature=None,
        reason="no",
    )
    predictions = [
        make_prediction(RUN_ID, batch_size=1, num_speculative_tokens=k, tokens_per_s=float(k))
        for k in (3, 7)
    ]
    arms = tried_arms(LEDGER, [failure, failure], predictions)
    assert find(arms, 1, FAILED).failures == ("no", "no")
    assert find(arms, 1, NGRAM).predicted_tokens_per_s == 3.0
    assert all(arm.config.num_speculative_tokens != 7 for arm in arms)


def test_order() -> None:
    """By batch size, the fastest first, those without an estimate last."""
    failure = make_failure(
        RUN_ID,
        batch_size=1,
        drafter=FAILED.drafter,
        num_speculative_tokens=5,
        draft_temperature=None,
    )
    labels = [(arm.batch_size, arm.config.label()) for arm in tried_arms(LEDGER, [failure])]
    assert labels == [
        (1, "ngram K=3"),
        (1, "layer-skip-8 K=2 T=0.7"),
        (1, "layer-skip-8 K=5"),
        (16, "layer-skip-8 K=2 T=0.7"),
        (16, "ngram K=0"),
        (16, "ngram K=3"),
    ]


def test_choice_of_requests_widens_the_interval() -> None:
    """The part that blocks cannot see is joined in quadrature, for the arms it is known of."""
    plain = tried_arms(LEDGER)
    known = make_prediction(
        RUN_ID,
        batch_size=1,
        drafter=NGRAM.drafter,
        num_speculative_tokens=NGRAM.num_speculative_tokens,
        draft_temperature=NGRAM.draft_temperature,
        request_std_error=0.3,
    )
    wide = tried_arms(LEDGER, predictions=[known])
    before, after = find(plain, 1, NGRAM).validated, find(wide, 1, NGRAM).validated
    assert before is not None
    assert after is not None
    assert after.std_error == pytest.approx(math.hypot(before.std_error, 0.3))
    assert find(wide, 1, SKIP) == find(plain, 1, SKIP)


@pytest.mark.parametrize(("expected", "found"), [(130.0, False), (170.0, True), (None, False)])
def test_blocks_that_contradict_the_replay_are_told(expected: float | None, found: bool) -> None:
    """The estimate then rests on what was emitted."""
    rows = [
        make_measurement(
            RUN_ID, stage="validate", expected_tokens=expected, candidate_tokens=130 + i
        )
        for i in (-2, -1, 0, 0, 0, 1, 1, 1)
    ]
    (arm,) = tried_arms(rows)
    assert arm.contradicts_replay is found
    assert arm.validated is not None
    assert arm.validated.candidate_tokens_per_s == pytest.approx(130 / 1.1, rel=1e-3)

"""The few cells that are timed, and predictions made of them. No test looks at a duration."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest

from autotune.progress import Silent
from autotune.tuning.acceptance import profile_drafters
from autotune.tuning.costs import cost_records, measure_costs, middle_states
from autotune.tuning.paired_block import Tally
from autotune.tuning.prior import Prior
from autotune.tuning.session import Session
from engine.drafters.base import Drafter, Proposal
from engine.engine import Engine
from engine.errors import NumericError
from engine.latency import CostCell, CostTable
from engine.request import Sequence
from policies.types import OFF, SpeculativeConfig
from tests.support.scripted import StatelessDrafter
from tests.support.sessions import memory_session
from tests.support.tiny_models import ngram, random_prompt, request, similar_draft

REQUESTS = [
    request(random_prompt(seed, 6), name=f"{seed}", max_tokens=14, temperature=1.0, seed=seed)
    for seed in range(4)
]


def session_of(k_max: int = 8, **drafters: object) -> Session:
    """A session for batches of one and three."""
    return memory_session(
        REQUESTS,
        drafters or {"ngram": ngram, "draft": similar_draft},  # type: ignore[arg-type]
        max_num_speculative_tokens=k_max,
        batch_sizes=(1, 3),
        draft_temperatures=(None,),
    )


def keys(cells: list[CostCell], drafter: str | None) -> Counter[tuple[int, int]]:
    """Batch sizes and K of the cells of a drafter."""
    return Counter(
        (cell.batch_size, cell.num_speculative_tokens) for cell in cells if cell.drafter == drafter
    )


@pytest.mark.parametrize(
    ("k_max", "verify", "draft"),
    [
        (8, (0, 1, 2, 4, 8), (1, 4)),
        (4, (0, 1, 2, 4), (1, 4)),
        (2, (0, 1, 2), (1, 2)),
        (1, (0, 1), (1,)),
    ],
)
def test_few_cells_span_the_search(
    k_max: int, verify: tuple[int, ...], draft: tuple[int, ...]
) -> None:
    """Verify passes from plain to the largest K, two K per model, one for a lookup."""
    session = session_of(k_max)
    progress = Silent()

    cells = measure_costs(session, profile_drafters(session, progress), progress)

    assert keys(cells, None) == Counter((b, k) for b in (1, 3) for k in verify)
    assert keys(cells, "draft") == Counter((b, k) for b in (1, 3) for k in draft)
    assert keys(cells, "ngram") == Counter((b, 1) for b in (1, 3))
    assert session.engine.sequences == {}
    assert progress.notes == []


def cost_cell(kind: str, drafter: str | None, k: int, seconds: float) -> CostCell:
    """One timed step at batch size 3."""
    return CostCell(
        kind=kind,
        drafter=drafter,
        batch_size=3,
        num_speculative_tokens=k,
        num_tokens=3 * (1 + k),
        seconds=(seconds,),
    )


def costs_by_hand() -> CostTable:
    """10 ms for a plain step, 5 ms for each draft in it, and 1 ms for drafting it."""
    return CostTable(
        [
            cost_cell("verify", None, 0, 0.010),
            cost_cell("verify", None, 4, 0.030),
            cost_cell("draft", "draft", 1, 0.001),
            cost_cell("draft", "draft", 4, 0.004),
        ]
    )


def test_every_arm_can_be_predicted_from_them() -> None:
    """Positive rates for every arm at every batch size; an idle drafter costs nothing."""
    session = session_of()
    acceptance = profile_drafters(session, Silent())
    prior = Prior(acceptance, CostTable(measure_costs(session, acceptance, Silent())))

    for batch_size in (1, 3):
        rates = [prior.tokens_per_s(arm, batch_size) for arm in acceptance.arms(8)]
        assert min(rates) > 0
        off = prior.off_tokens_per_s(batch_size)
        assert prior.tokens_per_s(OFF, batch_size) == off
        assert prior.tokens_per_s(SpeculativeConfig(drafter="draft"), batch_size) == off


def test_a_prediction_by_hand() -> None:
    """Rows times tau over (verify + draft), with the tokens that a round verifies on average."""
    session = session_of()
    acceptance = profile_drafters(session, Silent())
    table = costs_by_hand()
    arm = SpeculativeConfig(drafter="draft", num_speculative_tokens=2)
    counts = acceptance.replay(arm)

    verify_s = 0.010 + 0.020 * (counts.mean_verify_tokens - 1) / 4
    assert Prior(acceptance, table).tokens_per_s(arm, 3) == pytest.approx(
        3 * counts.tokens_per_round / (verify_s + 0.002)
    )
    assert Prior(acceptance, table).off_tokens_per_s(3) == pytest.approx(300.0)


def test_expected_tokens_of_a_window_by_hand() -> None:
    """Replay's tokens for its rounds, at the usual time of a round.

    The rounds verified 1 + 1.5 tokens a row, more than replay's mean, and so took longer than
    usual: the same time holds more rounds on average.
    """
    session = session_of()
    acceptance = profile_drafters(session, Silent())
    table = costs_by_hand()
    arm = SpeculativeConfig(drafter="draft", num_speculative_tokens=2)
    counts = acceptance.replay(arm)
    tally = Tally(num_tokens=1, num_rounds=40, seconds=1.0, num_draft_tokens=60)

    usual_s = 0.010 + 0.020 * (counts.mean_verify_tokens - 1) / 4 + 0.002
    these_s = 0.010 + 0.020 * 1.5 / 4 + 0.002
    assert Prior(acceptance, table).expected_tokens(arm, 3, tally) == pytest.approx(
        40 * counts.tokens_per_round * these_s / usual_s
    )


def test_nothing_is_expected_where_nothing_is_known() -> None:
    """Idle drafters have no luck to take out, and untimed batch sizes no model."""
    session = session_of()
    acceptance = profile_drafters(session, Silent())
    prior = Prior(acceptance, CostTable([cost_cell("verify", None, 0, 0.010)]))
    tally = Tally(num_tokens=40, num_rounds=40, seconds=1.0)
    arm = SpeculativeConfig(drafter="draft", num_speculative_tokens=2)

    assert prior.expected_tokens(SpeculativeConfig(drafter="draft"), 3, tally) is None
    assert prior.expected_tokens(arm, 4, tally) is None


class BreaksOnItsOwnDrafts(StatelessDrafter):
    """Works along recorded answers, and overflows as soon as it drafts for real."""

    def __init__(self) -> None:
        self.broken = False

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Zeros, or an error."""
        if self.broken:
            raise NumericError("logits hold NaN")
        return Proposal([[0] * limit for limit in limits], None)


def test_a_drafter_that_fails_is_discarded_with_a_note() -> None:
    """Later arms never see it, and the others are timed."""

    def breaking(engine: Engine) -> Drafter:
        return BreaksOnItsOwnDrafts()

    session = session_of(fragile=breaking, draft=similar_draft)
    acceptance = profile_drafters(session, Silent())
    fragile = session.drafters["fragile"]
    assert isinstance(fragile, BreaksOnItsOwnDrafts)
    fragile.broken = True
    progress = Silent()

    cells = measure_costs(session, acceptance, progress)

    assert progress.notes == ["drafter fragile skipped: logits hold NaN"]
    assert keys(cells, "draft").total() == 4
    assert {arm.drafter for arm in acceptance.arms(2)} == {"draft"}
    assert session.engine.sequences == {}


def test_states_lie_in_the_middle_of_answers() -> None:
    """Drawn by the run's seed; an answer may serve several rows."""
    session = session_of()

    states = middle_states(session, 8)

    assert states == middle_states(session, 8)
    assert len(states) == 8
    assert all(position == max(1, t.num_decoded // 2) for t, position in states)


def test_answers_of_one_token_are_not_timed() -> None:
    """They have no round to time."""
    one = request((1, 2), name="one", max_tokens=1)
    session = memory_session([one, *REQUESTS[:1]], {})

    assert {t.request.request_id for t, _ in middle_states(session, 20)} == {"0"}


def test_records_keep_median_and_extremes() -> None:
    """As the store wants them."""
    cells = [
        CostCell(
            kind="verify",
            drafter=None,
            batch_size=2,
            num_speculative_tokens=3,
            num_tokens=8,
            seconds=(0.3, 0.1, 0.2),
        ),
        CostCell(
            kind="draft",
            drafter="draft",
            batch_size=2,
            num_speculative_tokens=3,
            num_tokens=6,
            seconds=(0.5,),
        ),
    ]

    verify, draft = cost_records(cells, str(uuid4()))

    assert (verify.kind, verify.drafter, verify.num_tokens) == ("verify", None, 8)
    assert (verify.seconds_low, verify.seconds_median, verify.seconds_high) == (0.1, 0.2, 0.3)
    assert verify.num_samples == 3
    assert (draft.kind, draft.drafter, draft.num_tokens) == ("draft", "draft", 6)

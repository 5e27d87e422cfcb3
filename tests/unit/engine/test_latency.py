"""Step times: what is timed, and how the table fills the gaps. No test looks at a duration."""

from __future__ import annotations

import pytest

from engine.drafters.base import Drafter, DrafterSnapshot, Proposal
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.engine import Engine
from engine.errors import NumericError
from engine.latency import CostCell, CostTable, time_draft, time_verify
from engine.record import Trajectory, record
from engine.request import Sequence
from tests.support.eagle3 import feature_layers
from tests.support.scripted import StatelessDrafter
from tests.support.tiny_models import DRAFTERS, random_prompt, request, tiny_engine, tiny_model

MAX_LEN = 64
TARGET = tiny_model(7)


def engine_and_answers(
    *, prompt: int = 10, max_tokens: int = 20, temperature: float = 0.0, stop: int | None = None
) -> tuple[Engine, list[Trajectory]]:
    """An idle engine of five slots and some answers."""
    engine = tiny_engine(TARGET, slots=5, max_len=MAX_LEN)
    requests = [
        request(
            random_prompt(seed, prompt),
            name=f"{seed}",
            max_tokens=max_tokens,
            temperature=temperature,
            stop_token_ids=frozenset() if stop is None else frozenset({stop}),
        )
        for seed in range(5)
    ]
    layers = feature_layers(TARGET)
    return engine, record(engine, requests, batch_size=5, feature_layers=layers)


def snapshots_of(drafter: Drafter, answers: list[Trajectory]) -> dict[str, DrafterSnapshot]:
    """By request, where the drafter cannot do without."""
    if not isinstance(drafter, Eagle3Drafter):
        return {}
    return {t.request.request_id: drafter.snapshot_of(t) for t in answers}


class Watched(StatelessDrafter):
    """Notes what it is asked for, and where."""

    name = "watched"

    def __init__(self) -> None:
        self.limits: list[list[int]] = []
        self.lengths: list[list[int]] = []

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """As many tokens as allowed."""
        self.limits.append(limits)
        self.lengths.append([len(sequence.tokens) for sequence in sequences])
        return Proposal([[0] * limit for limit in limits], None)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_verify_cell_counts_what_it_verified(batch_size: int, k: int) -> None:
    """Rows, K, tokens of the step and one time per sample; the warm-up is left out."""
    engine, answers = engine_and_answers()

    cell = time_verify(
        engine, [(trajectory, 7) for trajectory in answers[:batch_size]], k, num_samples=4
    )

    assert (cell.kind, cell.drafter) == ("verify", None)
    assert (cell.batch_size, cell.num_speculative_tokens) == (batch_size, k)
    assert cell.num_tokens == batch_size * (1 + k)
    assert len(cell.seconds) == 4
    assert min(cell.seconds) > 0
    assert engine.sequences == {}


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_draft_cell_is_for_every_drafter(kind: str) -> None:
    """Models draft K tokens a row, n-grams what they find."""
    engine, answers = engine_and_answers()
    drafter = DRAFTERS[kind](engine)
    held = snapshots_of(drafter, answers)

    cell = time_draft(engine, drafter, [(t, 7) for t in answers], held, 3, num_samples=2)

    assert (cell.kind, cell.drafter, cell.batch_size) == ("draft", drafter.name, 5)
    assert cell.num_tokens == 15 if kind != "ngram" else cell.num_tokens <= 15
    assert len(cell.seconds) == 2
    assert engine.sequences == {}


def test_every_sample_sees_the_same_state() -> None:
    """Rounds move on; the time of one context is asked for."""
    engine, answers = engine_and_answers()
    watched = Watched()

    time_draft(engine, watched, [(answers[0], 7), (answers[1], 12)], {}, 3, num_samples=3)

    assert watched.lengths == [[17, 22]] * 4
    assert watched.limits == [[3, 3]] * 4


def test_verify_passes_keep_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many samples near the end of the slot: no row finishes, no pass gets smaller."""
    engine, answers = engine_and_answers(prompt=52, max_tokens=12)
    sizes: list[list[int]] = []
    run = engine.round

    def spied(k: int) -> object:
        outcomes = run(k)
        sizes.append([outcome.num_drafted for outcome in outcomes])
        return outcomes

    monkeypatch.setattr(engine, "round", spied)

    cell = time_verify(engine, [(t, 11) for t in answers], 8, num_samples=20)

    assert sizes == [[8] * 5] * 21
    assert cell.num_tokens == 45


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_proposals_at_the_end_of_the_slot_stay_inside(kind: str, k: int) -> None:
    """A context that fills its slot leaves no room for drafts: a shorter one is timed."""
    engine, answers = engine_and_answers(prompt=52, max_tokens=12)
    drafter: Drafter = DRAFTERS[kind](engine)
    held = snapshots_of(drafter, answers)

    cell = time_draft(engine, drafter, [(t, 11) for t in answers], held, k, num_samples=1)

    if kind != "ngram":
        assert cell.num_tokens == 5 * k


def test_a_slot_shorter_than_k_leaves_what_fits() -> None:
    """The tokens of the cell are those that were verified."""
    engine = tiny_engine(TARGET, slots=1, max_len=6)
    (trajectory,) = record(engine, [request((1, 2), max_tokens=4)], batch_size=1)

    cell = time_verify(engine, [(trajectory, 2)], 8, num_samples=1)

    assert cell.num_tokens == 5  # two tokens of context, four drafts behind them


def test_end_tokens_and_stops_do_not_end_the_timing() -> None:
    """The step costs the same whatever it emits."""
    engine, answers = engine_and_answers(temperature=1.0, stop=3)
    long = [(t, 1) for t in answers if t.num_decoded]

    cell = time_verify(engine, long, 2, num_samples=10)

    assert cell.num_tokens == 3 * len(long)


class Broken(StatelessDrafter):
    """Computes NaN."""

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Nothing but an error."""
        raise NumericError("logits hold NaN")


def test_a_drafter_that_fails_leaves_the_engine_idle() -> None:
    """The next cell can be timed."""
    engine, answers = engine_and_answers()

    with pytest.raises(NumericError):
        time_draft(engine, Broken(), [(answers[0], 2)], {}, 2, num_samples=2)

    assert engine.sequences == {}
    assert time_verify(engine, [(answers[0], 2)], 1, num_samples=1).num_tokens == 2


# ---------------------------------------------------------------- the table


def verify_cell(batch_size: int, k: int, seconds: float) -> CostCell:
    """A timed verify pass."""
    return CostCell(
        kind="verify",
        drafter=None,
        batch_size=batch_size,
        num_speculative_tokens=k,
        num_tokens=batch_size * (1 + k),
        seconds=(seconds,),
    )


def draft_cell(k: int, seconds: float, *, drafter: str = "draft", batch_size: int = 2) -> CostCell:
    """A timed proposal."""
    return CostCell(
        kind="draft",
        drafter=drafter,
        batch_size=batch_size,
        num_speculative_tokens=k,
        num_tokens=batch_size * k,
        seconds=(seconds,),
    )


def test_the_median_counts() -> None:
    """One slow sample does not spoil a cell."""
    cell = CostCell(
        kind="verify",
        drafter=None,
        batch_size=1,
        num_speculative_tokens=0,
        num_tokens=1,
        seconds=(3.0, 1.0, 900.0, 2.0, 2.5),
    )

    assert cell.median_s == 2.5


def test_verify_time_is_linear_between_cells() -> None:
    """In tokens of the whole step, each batch size on its own; fractions of drafts occur."""
    table = CostTable(
        [
            verify_cell(4, 3, 10.0),
            verify_cell(4, 0, 4.0),
            verify_cell(4, 1, 6.0),
            verify_cell(1, 0, 1.0),
            verify_cell(1, 3, 2.0),
        ]
    )

    assert table.verify_s(4, 1.0) == 4.0
    assert table.verify_s(4, 1.5) == pytest.approx(5.0)
    assert table.verify_s(4, 3.0) == pytest.approx(8.0)
    assert table.verify_s(1, 2.5) == pytest.approx(1.5)


def test_a_proposal_goes_on_along_its_last_segment() -> None:
    """Chains draft one token at a time, so K beyond the cells is a straight line."""
    table = CostTable([draft_cell(4, 5.0), draft_cell(1, 2.0), draft_cell(1, 9.0, drafter="big")])

    assert table.draft_s("draft", 2, 2) == pytest.approx(3.0)
    assert table.draft_s("draft", 2, 8) == pytest.approx(9.0)
    assert table.draft_s("big", 2, 8) == 9.0


def test_noise_never_leads_to_times_below_zero() -> None:
    """A slow first cell and a fast last one: beyond it, time stands still."""
    table = CostTable([draft_cell(1, 9.0), draft_cell(4, 3.0)])

    assert table.draft_s("draft", 2, 2) == pytest.approx(7.0)
    assert table.draft_s("draft", 2, 8) == 3.0


def test_two_cells_of_one_size_do_not_divide_by_zero() -> None:
    """Where a slot is shorter than K, two K verify equally many tokens."""
    cells = [
        CostCell(
            kind="verify",
            drafter=None,
            batch_size=1,
            num_speculative_tokens=k,
            num_tokens=tokens,
            seconds=(float(tokens),),
        )
        for k, tokens in ((0, 1), (4, 5), (8, 5))
    ]

    assert CostTable(cells).verify_s(1, 3.0) == pytest.approx(3.0)
    assert CostTable(cells).verify_s(1, 5.0) == 5.0
    assert CostTable(cells).verify_s(1, 6.0) == 5.0


def test_what_was_not_timed_is_not_guessed() -> None:
    """Another batch size or drafter is an error of the caller."""
    table = CostTable([verify_cell(1, 0, 1.0), draft_cell(1, 1.0)])

    with pytest.raises(KeyError):
        table.verify_s(2, 1.0)
    with pytest.raises(KeyError):
        table.draft_s("other", 2, 1)
    with pytest.raises(KeyError):
        table.draft_s("draft", 1, 1)

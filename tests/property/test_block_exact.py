"""The block rule keeps the target's law, and what replay takes for it is true: exact proofs.

As tests/property/test_lossless_exact.py for the ratio rule: proven in rationals, the engine's code
tied to the rule decision by decision and, by integration over its uniforms, law by law.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import accumulate, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.verify import verify_sampled
from engine.verify_block import verify_block
from tests.support.block_laws import (
    block_boxes,
    block_round_law,
    decide_block,
    emitting,
    joint_probs,
    mean_accepted,
    survival_given,
    thresholds,
)
from tests.support.block_mutants import BLOCK_MUTANTS, verify_block_with
from tests.support.chains import CATALOGUE, dists, tables
from tests.support.laws import (
    DELTA,
    RATIO,
    Case,
    Cell,
    Dist,
    Drafting,
    Verify,
    dist,
    midpoints,
    output_law,
    plain_law,
    round_law,
    rule_round_law,
    run,
    table_chain,
)
from tests.support.mutants import Mutant


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=tables(max_vocab=4))
def test_the_rule_keeps_the_law(num_drafts: int, table: tuple[list[Dist], list[Dist]]) -> None:
    """In rationals, all tokens that a round can emit and the first of the next, jointly."""
    target, draft = table_chain(table[0]), table_chain(table[1])
    num_tokens = num_drafts + 2 if len(table[0][0]) < 4 else 3

    round_at = partial(block_round_law, target, draft, num_drafts=num_drafts, drafting=RATIO)

    assert output_law(round_at, num_tokens) == plain_law(target, num_tokens)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("entry", CATALOGUE)
def test_the_engine_keeps_the_law(entry: str, num_drafts: int) -> None:
    """`verify_block`, integrated over its uniforms, gives the target's law over two rounds."""
    target, draft = (table_chain(rows) for rows in CATALOGUE[entry])

    round_at = partial(
        round_law,
        verify_block,
        target,
        draft,
        num_drafts=num_drafts,
        drafting=RATIO,
        boxes=block_boxes,
    )

    assert output_law(round_at, 2) == plain_law(target, 2)


@pytest.mark.parametrize("num_drafts", [2, 3])
@pytest.mark.parametrize(("entry", "num_tokens"), [("binary", 5), ("draft ahead, then behind", 4)])
def test_the_engine_keeps_the_law_over_longer_outputs(
    entry: str, num_tokens: int, num_drafts: int
) -> None:
    """A whole round and more, full acceptances included: four or five tokens jointly."""
    target, draft = (table_chain(rows) for rows in CATALOGUE[entry])

    round_at = partial(
        round_law,
        verify_block,
        target,
        draft,
        num_drafts=num_drafts,
        drafting=RATIO,
        boxes=block_boxes,
    )

    assert output_law(round_at, num_tokens) == plain_law(target, num_tokens)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(table=tables(max_vocab=4))
def test_the_engine_follows_the_rule(num_drafts: int, table: tuple[list[Dist], list[Dist]]) -> None:
    """A round of the engine has the law of the rule's formulas, acceptances included."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    for prefix in ((), (1,)):
        assert round_law(
            verify_block, target, draft, prefix, num_drafts, RATIO, block_boxes
        ) == block_round_law(target, draft, prefix, num_drafts, RATIO)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), size=st.integers(2, 4))
def test_the_engine_decides_like_the_rule(data: st.DataObject, size: int) -> None:
    """Two drafts: every decision agrees on a grid finer than the rule needs.

    Without the ends of [0, 1): a product of float32 ratios that is 1 may come out just below.
    """
    p = tuple(data.draw(dists(size)) for _ in range(3))
    q = tuple(data.draw(dists(size)) for _ in range(2))
    draft = tuple(data.draw(st.sampled_from([i for i, x in enumerate(row) if x])) for row in q)
    case = Case(p, q, draft)

    rows = fine_grid(case)
    verdict = run(verify_block, rows, delta=False)

    for (_, cell), accepted, following in zip(
        rows, verdict.num_accepted, verdict.next_tokens, strict=True
    ):
        assert (accepted, following) == decide_block(case, cell.accept, cell.emit)


def fine_grid(case: Case) -> list[tuple[Case, Cell]]:
    """Uniforms between all breakpoints that a right or wrong rule might have."""
    steps = [*thresholds(case), *joint_probs(case)]
    steps += [case.p[i][token] / case.q[i][token] for i, token in enumerate(case.draft)]
    accept = [middle for _, middle in midpoints(steps)]
    ends = [x for i in range(3) for x in accumulate(emitting(case, i))]
    emit = [middle for _, middle in midpoints(ends)]
    rows = []
    for first, second in product(accept, repeat=2):
        at, _ = decide_block(case, (first, second), (Fraction(0),) * 3)
        # The rule may not look at the uniforms of the other positions.
        for k, v in enumerate(emit):
            others = [emit[(k + 3 * i + 2) % len(emit)] for i in range(3)]
            others[at] = v
            rows.append((case, Cell(Fraction(0), (first, second), tuple(others))))
    return rows


# ---------------------------------------------------------------- beside the other rules


@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=tables(max_vocab=4))
def test_one_draft_is_the_ratio_rule(table: tuple[list[Dist], list[Dist]]) -> None:
    """With K = 1 the engine's two rules have one law."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    assert round_law(verify_block, target, draft, (), 1, RATIO, block_boxes) == round_law(
        verify_sampled, target, draft, (), 1, RATIO
    )


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("entry", CATALOGUE)
def test_deterministic_drafts_take_the_delta_rule(entry: str, num_drafts: int) -> None:
    """Without q there is one rule: the same law, acceptances included."""
    target, draft = (table_chain(rows) for rows in CATALOGUE[entry])

    assert round_law(verify_block, target, draft, (), num_drafts, DELTA) == rule_round_law(
        target, draft, (), num_drafts, DELTA
    )


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("entry", CATALOGUE)
def test_a_draft_declared_certain_is_accepted_as_by_the_delta_rule(
    entry: str, num_drafts: int
) -> None:
    """A one-hot q leaves nothing to carry along: both ways have one law."""
    target, draft = (table_chain(rows) for rows in CATALOGUE[entry])
    certain = Drafting(law=DELTA.law, claim=DELTA.law)

    assert round_law(
        verify_block, target, draft, (), num_drafts, certain, block_boxes
    ) == rule_round_law(target, draft, (), num_drafts, DELTA)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(table=tables(max_vocab=3))
def test_no_fewer_drafts_are_accepted_than_by_the_ratio_rule(
    num_drafts: int, table: tuple[list[Dist], list[Dist]]
) -> None:
    """In expectation over the drafts, after any prefix."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    for prefix in ((), (1,)):
        block = block_round_law(target, draft, prefix, num_drafts, RATIO)
        ratio = rule_round_law(target, draft, prefix, num_drafts, RATIO)
        assert mean_accepted(block) >= mean_accepted(ratio)


def test_the_example_of_the_paper() -> None:
    """Two tokens, two drafts: 10/9 accepted by the ratio rule, 11/9 by the block rule."""
    target, draft = table_chain([dist(1, 2)]), table_chain([dist(2, 1)])

    ratio = round_law(verify_sampled, target, draft, (), 2, RATIO)
    block = round_law(verify_block, target, draft, (), 2, RATIO, block_boxes)

    assert mean_accepted(ratio) == Fraction(10, 9)
    assert mean_accepted(block) == Fraction(11, 9)


# ---------------------------------------------------------------- what replay takes for it


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=tables(max_vocab=3))
def test_survival_given_the_answer_is_a_running_minimum(
    num_drafts: int, table: tuple[list[Dist], list[Dist]]
) -> None:
    """P(at least j accepted | y) = min_{m <= j} prod_{i <= m} q(y_i) / p(y_i), for every y."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    law = block_round_law(target, draft, (), num_drafts, RATIO)

    for answer in plain_law(target, num_drafts + 1):
        ratios = [
            draft(answer[:i])[token] / target(answer[:i])[token]
            for i, token in enumerate(answer[:-1])
        ]
        products = list(accumulate(ratios, lambda a, b: a * b, initial=Fraction(1)))
        assert survival_given(law, target, answer) == list(accumulate(products, min))


# ---------------------------------------------------------------- wrong rules


def broken_by(verify: Verify, drafting: Drafting) -> list[str]:
    """Where an implementation departs from the target's law or, at u = 0, from its support."""
    found = []
    for entry, (target_rows, draft_rows) in CATALOGUE.items():
        target, draft = table_chain(target_rows), table_chain(draft_rows)
        for num_drafts in (1, 2):
            round_at = partial(
                round_law,
                verify,
                target,
                draft,
                num_drafts=num_drafts,
                drafting=drafting,
                boxes=partial(block_boxes, wide=True),
            )
            if output_law(round_at, 2) != plain_law(target, 2):
                found.append(f"{entry}, K = {num_drafts}")
    impossible = Case((dist(0, 1), dist(1, 1)), (dist(1, 1),), (0,))
    edge = Cell(Fraction(0), (Fraction(0),), (Fraction(0), Fraction(0)))
    if run(verify, [(impossible, edge)], delta=False).num_accepted != [0]:
        found.append("u = 0 accepts p = 0")
    return found


@pytest.mark.parametrize("mutant", BLOCK_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_rule_is_noticed(mutant: Mutant) -> None:
    """Each mutant departs from the target's law, or accepts what the target cannot say."""
    assert broken_by(mutant.verify, mutant.drafting)


@pytest.mark.parametrize("verify", [verify_block_with, verify_block], ids=["control", "engine"])
def test_a_right_rule_passes_the_same_test(verify: Verify) -> None:
    """The mutants' frame with nothing exchanged, and the engine, have nothing to notice."""
    assert broken_by(verify, RATIO) == []

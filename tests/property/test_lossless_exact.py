"""Verification keeps the target's law: an exact proof over tiny vocabularies.

Nothing here is sampled. The rule is proven in rationals; the engine's code is tied to it decision
by decision and, by integration over its uniforms, law by law; wrong rules are shown to fail.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import accumulate, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.verify import verify_sampled
from tests.support.chains import CATALOGUE, dists, tables
from tests.support.laws import (
    DELTA,
    RATIO,
    Case,
    Cell,
    Dist,
    Drafting,
    Verify,
    decide,
    dist,
    least_of,
    midpoints,
    one_hot,
    output_law,
    plain_law,
    residual,
    round_law,
    rule_round_law,
    run,
    table_chain,
)
from tests.support.mutants import MUTANTS, Mutant, verify_with

RULES = {
    "ratio": RATIO,
    "delta": DELTA,
    "delta of a bad draft": Drafting(law=least_of, claim=None),
}
ALMOST_ONE = 1 - Fraction(1, 2**53)  # the largest uniform


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=tables(max_vocab=4))
def test_the_rule_keeps_the_law(
    rule: str, num_drafts: int, table: tuple[list[Dist], list[Dist]]
) -> None:
    """In rationals, the first three tokens over as many rounds have exactly the target's law."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    round_at = partial(rule_round_law, target, draft, num_drafts=num_drafts, drafting=RULES[rule])

    assert output_law(round_at, 3) == plain_law(target, 3)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("entry", CATALOGUE)
def test_the_engine_keeps_the_law(entry: str, rule: str, num_drafts: int) -> None:
    """`verify_sampled`, integrated over its uniforms, gives the target's law over two rounds."""
    target, draft = (table_chain(rows) for rows in CATALOGUE[entry])

    round_at = partial(
        round_law, verify_sampled, target, draft, num_drafts=num_drafts, drafting=RULES[rule]
    )

    assert output_law(round_at, 2) == plain_law(target, 2)


@pytest.mark.parametrize("rule", RULES)
def test_the_engine_keeps_the_law_over_longer_outputs(rule: str) -> None:
    """Two whole rounds with K = 2, full acceptances included: five tokens jointly."""
    target, draft = (table_chain(rows) for rows in CATALOGUE["binary"])

    round_at = partial(round_law, verify_sampled, target, draft, num_drafts=2, drafting=RULES[rule])

    assert output_law(round_at, 5) == plain_law(target, 5)


@pytest.mark.parametrize("num_drafts", [1, 2])
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(table=tables(max_vocab=3))
def test_the_engine_follows_the_rule(
    rule: str, num_drafts: int, table: tuple[list[Dist], list[Dist]]
) -> None:
    """A round of the engine has the law of the rule's formulas, acceptances included."""
    target, draft = table_chain(table[0]), table_chain(table[1])

    for prefix in ((), (1,)):
        assert round_law(
            verify_sampled, target, draft, prefix, num_drafts, RULES[rule]
        ) == rule_round_law(target, draft, prefix, num_drafts, RULES[rule])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), size=st.integers(2, 4), delta=st.booleans())
def test_the_engine_decides_like_the_rule(data: st.DataObject, size: int, delta: bool) -> None:
    """Every decision agrees on a grid finer than the rule needs, and at both ends of [0, 1)."""
    p, bonus, model = (data.draw(dists(size)) for _ in range(3))
    token = data.draw(st.sampled_from([i for i, x in enumerate(model) if x]))
    q = one_hot(size, token) if delta else model
    case = Case((p, bonus), (q,), (token,))

    rows = fine_grid(case)
    verdict = run(verify_sampled, rows, delta=delta)

    for (_, cell), accepted, following in zip(
        rows, verdict.num_accepted, verdict.next_tokens, strict=True
    ):
        assert (accepted, following) == decide(case, cell.accept, cell.emit)


def fine_grid(case: Case) -> list[tuple[Case, Cell]]:
    """Uniforms between all breakpoints that a right or wrong rule might have, K = 1."""
    (p, bonus), (q,), (token,) = case
    ratio = p[token] / q[token]
    inverse = q[token] / p[token] if p[token] else Fraction(1)
    left = residual(p, q)
    accept = _points([ratio, inverse, p[token], q[token]])
    emit = _points([x for weights in (p, bonus, q, left) for x in accumulate(weights)])
    # The uniform that the rule does not use runs through the same values in another order.
    rows = []
    for (i, u), (j, v) in product(enumerate(accept), enumerate(emit)):
        other = emit[(i + 2 * j + 1) % len(emit)]
        at = decide(case, [u], [v, v])[0]
        rows.append((case, Cell(Fraction(0), (u,), (v, other) if at == 0 else (other, v))))
    return rows


def _points(breaks: list[Fraction]) -> list[Fraction]:
    return [Fraction(0), *(middle for _, middle in midpoints(breaks)), ALMOST_ONE]


def broken_by(verify: Verify, drafting: Drafting) -> list[str]:
    """Where an implementation departs from the target's law or, at u = 0, from its support."""
    found = []
    for entry, (target_rows, draft_rows) in CATALOGUE.items():
        target, draft = table_chain(target_rows), table_chain(draft_rows)
        for num_drafts in (1, 2):
            round_at = partial(
                round_law, verify, target, draft, num_drafts=num_drafts, drafting=drafting
            )
            if output_law(round_at, 2) != plain_law(target, 2):
                found.append(f"{entry}, K = {num_drafts}")
    impossible = Case((dist(0, 1), dist(1, 1)), (dist(1, 1),), (0,))
    edge = Cell(Fraction(0), (Fraction(0),), (Fraction(0), Fraction(0)))
    if run(verify, [(impossible, edge)], delta=drafting.claim is None).num_accepted != [0]:
        found.append("u = 0 accepts p = 0")
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_rule_is_noticed(mutant: Mutant) -> None:
    """Each mutant departs from the target's law, or accepts what the target cannot say."""
    assert broken_by(mutant.verify, mutant.drafting)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("verify", [verify_with, verify_sampled], ids=["control", "engine"])
def test_a_right_rule_passes_the_same_test(verify: Verify, rule: str) -> None:
    """The mutants' frame with nothing exchanged, and the engine, have nothing to notice."""
    assert broken_by(verify, RULES[rule]) == []

"""Time in the models: nested calls count once."""

from __future__ import annotations

import time

from engine.model import Transformer
from tests.benchmarks.overhead import Limit, ModelTime, longest_output, timed_models


def test_a_nested_call_belongs_to_the_outer_one() -> None:
    """The inner call adds nothing of its own."""
    spent = ModelTime()
    inside: list[float] = []

    def inner() -> None:
        time.sleep(0.001)

    timed_inner = spent.wrap(inner)

    def outer() -> None:
        timed_inner()
        inside.append(spent.seconds)

    spent.wrap(outer)()
    assert inside == [0.0]
    assert spent.seconds > 0.0


def test_an_error_does_not_unbalance_the_count() -> None:
    """After a failed call the next one is an outermost call again."""
    spent = ModelTime()

    def fail() -> None:
        raise ValueError

    for _ in range(2):
        before = spent.seconds
        try:
            spent.wrap(fail)()
        except ValueError:
            assert spent.seconds > before


def test_the_models_are_left_as_they_were() -> None:
    """The wrapped methods are put back."""
    original = Transformer.logits
    with timed_models():
        assert Transformer.logits is not original
    assert Transformer.logits is original


def test_no_answer_ends_while_rounds_are_timed() -> None:
    """3 warm-up rounds and 10 timed ones of at most K + 1 = 4 tokens, after the first token."""
    assert longest_output(3, Limit(num_rounds=10)) > 1 + 13 * 4

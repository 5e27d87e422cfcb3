"""The block rule needs fresh noise where a position is drafted again.

Design.
Null: the first two tokens of rounds that draft two each, over a binary vocabulary whose
distributions do not depend on the text, are independent draws from p.
Test: Pearson's chi-square on the four outcomes, n = 20,000 rows.
Level: 1e-6 for the file.
Effect and power: a law at Cohen's w = 0.06 is missed at most once in a thousand files, asserted
below; the one under noise that is keyed by position alone is farther away.
Seeds: row i has seed i.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch

from engine.kernels.sampling import sample_from
from engine.rng import Purpose, uniform
from engine.verify_block import verify_block
from tests.support.chi_square import p_value, power
from tests.support.mutants import KeyedByPosition

N = 20_000
ALPHA = 1e-6
P, Q = (1 / 3, 2 / 3), (2 / 3, 1 / 3)
LAW = {(a, b): P[a] * P[b] for a, b in product(range(2), repeat=2)}

Noise = Callable[[int, int, int, Purpose], float]


def first_two_tokens(noise: Noise) -> list[tuple[int, ...]]:
    """Output of every row: rounds of two drafts until there are two tokens."""
    outputs: list[list[int]] = [[] for _ in range(N)]
    for round_index in (1, 2):
        rows = [row for row in range(N) if len(outputs[row]) < 2]

        def numbers(row: int, count: int, purpose: Purpose, at: int = round_index) -> list[float]:
            first = len(outputs[row])
            return [noise(row, at, first + i, purpose) for i in range(count)]

        drawn = [u for row in rows for u in numbers(row, 2, Purpose.DRAFT)]
        drafts = sample_from(torch.tensor([Q]).expand(len(drawn), 2), drawn).reshape(-1, 2).tolist()
        verdict = verify_block(
            torch.tensor([[P] * 3]).expand(len(rows), 3, 2),
            drafts,
            torch.tensor([[Q] * 2]).expand(len(rows), 2, 2),
            [numbers(row, 2, Purpose.ACCEPT) for row in rows],
            [numbers(row, 3, Purpose.EMIT) for row in rows],
        )
        for row, draft, accepted, token in zip(
            rows, drafts, verdict.num_accepted, verdict.next_tokens, strict=True
        ):
            outputs[row] += [*draft[:accepted], token]
    return [tuple(tokens[:2]) for tokens in outputs]


def test_the_engines_noise_is_fresh_in_every_round() -> None:
    """With the round in the key the law is the target's."""
    assert p_value(first_two_tokens(uniform), LAW) > ALPHA


def test_noise_keyed_by_position_alone_is_noticed() -> None:
    """What the block rule has looked at in one round must not decide in the next."""
    assert p_value(first_two_tokens(KeyedByPosition()), LAW) < ALPHA


def test_the_design_has_the_stated_power() -> None:
    """A law at the stated distance is missed at most once in a thousand files."""
    assert power(LAW, N, alpha=ALPHA, effect=0.06) >= 0.999

"""The block rule: single decisions at the edges. Its law is proven in tests/property."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.verify import verify_sampled
from engine.verify_block import verify_block

ALMOST_ONE = math.nextafter(1.0, 0.0)


def rows(*distributions: list[float]) -> Tensor:
    """[1, Q, vocab] float32."""
    return torch.tensor([distributions])


def random_probs(*shape: int, seed: int = 0) -> Tensor:
    """Seeded distributions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(shape, generator=generator), dim=-1)


def test_the_smallest_uniform_does_not_accept_an_impossible_token() -> None:
    """A uniform of 0 rejects a token of target probability 0, also one that follows another."""
    p, q = rows([0.5, 0.5], [0.0, 1.0], [0.5, 0.5]), rows([0.5, 0.5], [0.5, 0.5])

    verdict = verify_block(p, [[1, 0]], q, [[0.0, 0.0]], [[0.0] * 3])

    assert (verdict.num_accepted, verdict.next_tokens) == ([1], [1])


def test_nothing_is_accepted_beyond_an_impossible_token() -> None:
    """However likely the drafts after it are."""
    p = rows([0.0, 1.0], [0.9, 0.1], [0.9, 0.1], [0.5, 0.5])
    q = rows([0.5, 0.5], [0.1, 0.9], [0.1, 0.9])

    verdict = verify_block(p, [[0, 0, 0]], q, [[0.0] * 3], [[0.0] * 4])

    assert (verdict.num_accepted, verdict.next_tokens) == ([0], [1])


@pytest.mark.parametrize("seed", range(5))
def test_a_draft_equal_to_the_target_is_always_accepted(seed: int) -> None:
    """With q == p to the bit, even the largest uniform accepts every token."""
    p = random_probs(200, 4, 7, seed=seed)
    drafts = [[row % 7, (row + 3) % 7, (row + 5) % 7] for row in range(200)]

    verdict = verify_block(p, drafts, p[:, :3].clone(), [[ALMOST_ONE] * 3] * 200, [[0.5] * 4] * 200)

    assert verdict.num_accepted == [3] * 200


def test_a_surplus_makes_up_for_a_later_draft() -> None:
    """Where the ratio rule must reject the second draft, the block rule cannot."""
    p = rows([0.1, 0.4, 0.5], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0])
    q = rows([0.1, 0.8, 0.1], [0.6, 0.2, 0.2])
    drafts, uniforms = [[2, 0]], [[ALMOST_ONE, 0.6]]

    ratio = verify_sampled(p, drafts, q, uniforms, [[0.0] * 3])
    block = verify_block(p, drafts, q, uniforms, [[0.0] * 3])

    # The surplus is capped at certainty: after the first draft both stand at 1.
    assert ratio.num_accepted == block.num_accepted == [1]
    later = rows([0.1, 0.4, 0.5], [0.2, 0.4, 0.4], [0.9, 0.05, 0.05], [1.0, 0.0, 0.0])
    drawn = rows([0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4])
    ratio = verify_sampled(later, [[2, 0, 0]], drawn, [[0.0, 0.6, 0.9]], [[0.0] * 4])
    block = verify_block(later, [[2, 0, 0]], drawn, [[0.0, 0.6, 0.9]], [[0.0] * 4])
    assert ratio.num_accepted == [1]
    assert block.num_accepted == [3]


def test_the_residual_weighs_the_target_by_the_joint_probability() -> None:
    """P = 1/2 after the first draft: max(p / 2 - q, 0) = (0, .1, .05), and not max(p - q, 0)."""
    p = rows([0.3, 0.7, 0.0], [0.2, 0.4, 0.4], [1.0, 0.0, 0.0])
    q = rows([0.6, 0.4, 0.0], [0.75, 0.1, 0.15])
    # Z = 0.15, so h = 0.15 / 0.65 = 0.23; the second draft has P = 0.13.
    for accept, accepted in ((0.22, 1), (0.24, 0)):
        verdict = verify_block(p, [[0, 0]], q, [[accept, 0.2]], [[0.0] * 3])
        assert verdict.num_accepted == [accepted]
    tokens = [
        verify_block(p, [[0, 0]], q, [[0.0, 0.2]], [[0.0, u, 0.0]]).next_tokens[0]
        for u in (0.0, 0.65, 0.68, ALMOST_ONE)
    ]
    assert tokens == [1, 1, 2, 2]


@pytest.mark.parametrize("p", [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]], ids=["spread", "one-hot"])
def test_a_forced_rejection_without_residual_falls_back_to_the_target(p: list[float]) -> None:
    """With q == p and a uniform that rejects all the same, the target is sampled and counted."""
    target = rows(p, p)

    verdict = verify_block(target, [[1]], rows(p), [[1.0]], [[0.4, 0.4]])

    assert verdict.num_accepted == [0]
    assert verdict.next_tokens == [1]
    assert verdict.num_fallbacks == 1


def test_ordinary_rejections_are_not_counted_as_fallbacks() -> None:
    """Only rows without residual mass count."""
    p = random_probs(50, 3, 5)
    q = random_probs(50, 2, 5, seed=1)

    verdict = verify_block(
        p, [[0, 1]] * 50, q, [[ALMOST_ONE, ALMOST_ONE]] * 50, [[0.5, 0.5, 0.5]] * 50
    )

    assert 0 < verdict.num_accepted.count(0)
    assert verdict.num_fallbacks == 0


@pytest.mark.parametrize("delta", [True, False])
def test_a_ragged_batch_equals_its_rows(delta: bool) -> None:
    """Rows with 0 to 3 drafts in one batch decide as each does alone; padding has no effect."""
    p, q = random_probs(40, 4, 5), random_probs(40, 3, 5, seed=1)
    generator = torch.Generator().manual_seed(2)
    uniforms = torch.rand(40, 7, generator=generator, dtype=torch.float64).tolist()
    tokens = torch.randint(5, (40, 3), generator=generator).tolist()
    drafts = [tokens[row][: row % 4] for row in range(40)]
    accept = [[u / 4 for u in uniforms[row][: row % 4]] for row in range(40)]
    emit = [uniforms[row][3 : 4 + row % 4] for row in range(40)]

    whole = verify_block(p, drafts, None if delta else q, accept, emit)

    for row in range(40):
        alone = verify_block(
            p[row : row + 1, : len(drafts[row]) + 1],
            [drafts[row]],
            None if delta else q[row : row + 1, : len(drafts[row])],
            [accept[row]],
            [emit[row]],
        )
        assert alone.num_accepted == [whole.num_accepted[row]]
        assert alone.next_tokens == [whole.next_tokens[row]]
    assert set(whole.num_accepted) == {0, 1, 2, 3}


def test_the_inputs_are_left_alone() -> None:
    """Distributions that the caller still needs are not overwritten."""
    p, q = random_probs(30, 3, 5), random_probs(30, 2, 5, seed=1)
    p_before, q_before = p.clone(), q.clone()

    verdict = verify_block(p, [[0, 1]] * 30, q, [[0.1, 0.1]] * 30, [[0.3] * 3] * 30)

    assert {0, 2} <= set(verdict.num_accepted)
    assert torch.equal(p, p_before)
    assert torch.equal(q, q_before)

"""Verification: single decisions at the edges. The laws are proven in tests/property."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.verify import verify_greedy, verify_sampled

ALMOST_ONE = math.nextafter(1.0, 0.0)


def rows(*distributions: list[float]) -> Tensor:
    """[1, Q, vocab] float32."""
    return torch.tensor([distributions])


def random_probs(*shape: int, seed: int = 0) -> Tensor:
    """Seeded distributions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(shape, generator=generator), dim=-1)


def test_greedy_accepts_the_longest_common_prefix() -> None:
    """Each row by itself; the token after the prefix is the target's own."""
    best = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]]

    verdict = verify_greedy(best, [[1, 2, 3], [1, 9, 3], [9, 2, 3], [], [1]])

    assert verdict.num_accepted == [3, 1, 0, 0, 1]
    assert verdict.next_tokens == [4, 2, 1, 5, 2]
    assert verdict.num_fallbacks == 0


def test_the_smallest_uniform_does_not_accept_an_impossible_token() -> None:
    """A uniform of 0 rejects a token of target probability 0, under both rules."""
    p, q = rows([0.0, 1.0], [0.5, 0.5]), rows([0.5, 0.5])

    for draft_probs in (q, None):
        verdict = verify_sampled(p, [[0]], draft_probs, [[0.0]], [[0.0, 0.0]])
        assert (verdict.num_accepted, verdict.next_tokens) == ([0], [1])


@pytest.mark.parametrize("seed", range(5))
def test_a_draft_equal_to_the_target_is_always_accepted(seed: int) -> None:
    """With q == p to the bit, even the largest uniform accepts every token."""
    p = random_probs(200, 4, 7, seed=seed)
    drafts = [[row % 7, (row + 3) % 7, (row + 5) % 7] for row in range(200)]

    verdict = verify_sampled(
        p, drafts, p[:, :3].clone(), [[ALMOST_ONE] * 3] * 200, [[0.5] * 4] * 200
    )

    assert verdict.num_accepted == [3] * 200


def test_a_certain_target_accepts_its_token_and_rejects_all_others() -> None:
    """One-hot targets, delta rule and ratio rule, at both ends of the uniforms."""
    p = rows([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    q = rows([0.25, 0.25, 0.5])
    for u in (0.0, ALMOST_ONE):
        for draft_probs in (q, None):
            right = verify_sampled(p, [[1]], draft_probs, [[u]], [[u, u]])
            wrong = verify_sampled(p, [[2]], draft_probs, [[u]], [[u, u]])
            assert (right.num_accepted, right.next_tokens) == ([1], [2])
            assert (wrong.num_accepted, wrong.next_tokens) == ([0], [1])


@pytest.mark.parametrize("p", [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]], ids=["spread", "one-hot"])
def test_a_forced_rejection_without_residual_falls_back_to_the_target(p: list[float]) -> None:
    """With q == p and a uniform that rejects all the same, the target is sampled and counted."""
    target = rows(p, p)

    verdict = verify_sampled(target, [[1]], rows(p), [[1.0]], [[0.4, 0.4]])

    assert verdict.num_accepted == [0]
    assert verdict.next_tokens == [1]
    assert verdict.num_fallbacks == 1


def test_ordinary_rejections_are_not_counted_as_fallbacks() -> None:
    """Only rows without residual mass count."""
    p = random_probs(50, 2, 5)
    q = random_probs(50, 1, 5, seed=1)

    verdict = verify_sampled(p, [[0]] * 50, q, [[ALMOST_ONE]] * 50, [[0.5, 0.5]] * 50)

    assert 0 < verdict.num_accepted.count(0)
    assert verdict.num_fallbacks == 0


def test_a_draft_that_the_target_cannot_say_is_never_accepted() -> None:
    """An always-wrong drafter gets nothing through, whatever the uniforms are."""
    p = random_probs(100, 4, 6)
    p[:, :, 2] = 0.0
    uniforms = [[row / 100] * 3 for row in range(100)]
    q = torch.zeros(100, 3, 6)
    q[:, :, 2] = 1.0

    for draft_probs in (q, None):
        verdict = verify_sampled(
            p, [[2, 2, 2]] * 100, draft_probs, uniforms, [[row / 100] * 4 for row in range(100)]
        )
        assert verdict.num_accepted == [0] * 100
        assert 2 not in verdict.next_tokens


def test_acceptance_is_one_minus_the_total_variation_distance() -> None:
    """The ratio rule accepts sum min(p, q), which the delta rule would not reach."""
    p, q = [0.6, 0.2, 0.1, 0.1], [0.7, 0.2, 0.05, 0.05]
    steps = 4000
    uniforms = [[(i + 0.5) / steps] for i in range(steps)]
    accepted = 0.0
    for token, drawn in enumerate(q):
        verdict = verify_sampled(
            rows(p, p).expand(steps, 2, 4),
            [[token]] * steps,
            rows(q).expand(steps, 1, 4),
            uniforms,
            [[0.5, 0.5]] * steps,
        )
        accepted += drawn * sum(verdict.num_accepted) / steps

    assert accepted == pytest.approx(0.9, abs=1 / steps)


def test_the_uniform_of_the_emitted_position_decides() -> None:
    """The recovered token uses the rejected position's uniform, the bonus the last one."""
    half = [0.5, 0.5, 0.0]
    p = rows(half, half, half)
    q = rows([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    low, high = 0.1, 0.9

    # Tokens 0 and 1 share the target; the residual after rejecting token 0 is token 1 alone.
    bonus = verify_sampled(p, [[0, 0]], q, [[low, low]], [[high, high, low]])
    assert (bonus.num_accepted, bonus.next_tokens) == ([2], [0])
    bonus = verify_sampled(p, [[0, 0]], q, [[low, low]], [[low, low, high]])
    assert (bonus.num_accepted, bonus.next_tokens) == ([2], [1])

    spread = rows([0.0, 0.5, 0.5], half, half)
    for at_rejection, token in ((low, 1), (high, 2)):
        recovered = verify_sampled(
            spread, [[0, 0]], q, [[low, low]], [[at_rejection, 1 - at_rejection, 0.0]]
        )
        assert (recovered.num_accepted, recovered.next_tokens) == ([0], [token])


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

    whole = verify_sampled(p, drafts, None if delta else q, accept, emit)

    for row in range(40):
        alone = verify_sampled(
            p[row : row + 1, : len(drafts[row]) + 1],
            [drafts[row]],
            None if delta else q[row : row + 1, : len(drafts[row])],
            [accept[row]],
            [emit[row]],
        )
        assert alone.num_accepted == [whole.num_accepted[row]]
        assert alone.next_tokens == [whole.next_tokens[row]]
    assert set(whole.num_accepted) == {0, 1, 2, 3}


@pytest.mark.parametrize("delta", [True, False])
def test_the_inputs_are_left_alone(delta: bool) -> None:
    """Distributions that the caller still needs are not overwritten."""
    p, q = random_probs(30, 3, 5), random_probs(30, 2, 5, seed=1)
    p_before, q_before = p.clone(), q.clone()

    verdict = verify_sampled(
        p, [[0, 1]] * 30, None if delta else q, [[0.1, 0.1]] * 30, [[0.3] * 3] * 30
    )

    assert {0, 2} <= set(verdict.num_accepted)
    assert torch.equal(p, p_before)
    assert torch.equal(q, q_before)

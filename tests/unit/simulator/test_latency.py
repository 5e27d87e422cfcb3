"""Step times at the ends of the roofline, on stairs, and with experts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.latency import Draft, Experts, Target


def step(target: Target, rows: float, tokens: float) -> float:
    """Seconds of one step."""
    return float(target.step_s(np.array([rows]), np.array([tokens]))[0])


def test_few_tokens_cost_what_one_costs() -> None:
    """Below the ridge a step reads the weights, whatever it computes."""
    target = Target(weights_s=0.01, token_s=0.0001, host_s=0.001)
    assert step(target, 1, 1) == pytest.approx(0.011)
    assert step(target, 1, 16) == step(target, 1, 1)


def test_many_tokens_cost_what_they_compute() -> None:
    """Beyond the ridge of 100 tokens time is proportional to tokens."""
    target = Target(weights_s=0.01, token_s=0.0001)
    assert step(target, 64, 128) == pytest.approx(0.0128)
    assert step(target, 64, 256) == pytest.approx(2 * step(target, 64, 128))


def test_rows_read_their_context() -> None:
    """Keys and values are read once per row, not per token."""
    target = Target(weights_s=0.01, token_s=1e-9, row_s=0.0005)
    assert step(target, 8, 40) == pytest.approx(0.014)
    assert step(target, 8, 8) == step(target, 8, 40)


def test_a_staircase_pads_to_the_next_size() -> None:
    """All token counts of one stair cost the same; beyond the last stair nothing is padded."""
    target = Target(weights_s=1e-9, token_s=0.001, sizes=(1, 8, 16))
    assert [step(target, 1, n) for n in (1, 2, 8, 9, 16, 17)] == pytest.approx(
        [0.001, 0.008, 0.008, 0.016, 0.016, 0.017]
    )


def test_one_row_can_be_slower_than_four() -> None:
    """Kernels for few tokens may be the slower ones."""
    target = Target(weights_s=0.01, token_s=1e-9, few_tokens=4, few_factor=1.2)
    assert step(target, 1, 1) == pytest.approx(0.012)
    assert step(target, 4, 4) == pytest.approx(0.01)


def test_experts_are_read_as_tokens_touch_them() -> None:
    """One token reads its own experts, many tokens nearly all of them."""
    experts = Experts(count=64, active=4, weights_share=0.8)
    target = Target(weights_s=0.01, token_s=1e-9, experts=experts)
    assert step(target, 1, 1) == pytest.approx(0.01 * (0.2 + 0.8 * 4 / 64))
    assert step(target, 1, 2) == pytest.approx(0.01 * (0.2 + 0.8 * (1 - (60 / 64) ** 2)))
    assert step(target, 1, 1000) == pytest.approx(0.01)


def test_touched_experts_against_simulated_routing() -> None:
    """Null: the mean number of distinct experts over random tokens is N (1 - (1 - k/N)^n).

    400 steps of 12 tokens, 5 standard errors (alpha = 6e-7); power above 0.999 against 3 %.
    """
    random = np.random.default_rng(7)
    touched = [
        len({int(e) for _ in range(12) for e in random.choice(32, 4, replace=False)}) / 32
        for _ in range(400)
    ]
    error = np.std(touched, ddof=1) / 20
    expected = float(Experts(count=32, active=4, weights_share=1.0).read_share(np.array([12.0]))[0])
    assert error < 0.005
    assert abs(np.mean(touched) - expected) < 5 * error


def test_a_sequential_drafter_pays_per_draft() -> None:
    """K steps; at large batches each takes as long as its rows."""
    draft = Draft(step_s=0.001, row_s=0.0001, host_s=0.0002)
    rows, drafts = np.array([[1.0], [40.0]]), np.array([1.0, 4.0])
    assert draft.proposal_s(rows, drafts).tolist() == [
        pytest.approx([0.0012, 0.0042]),
        pytest.approx([0.0042, 0.0162]),
    ]


def test_a_parallel_drafter_pays_once() -> None:
    """One step drafts everything until its tokens fill it."""
    draft = Draft(step_s=0.001, row_s=0.0001, parallel=True)
    drafts = np.array([1.0, 4.0, 10.0, 20.0])
    assert draft.proposal_s(np.array([1.0]), drafts).tolist() == pytest.approx(
        [0.001, 0.001, 0.001, 0.002]
    )

"""Gains from acceptance and cost: theorems, and whole rounds simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.simulator.acceptance import Iid
from tests.simulator.arms import arm_config
from tests.simulator.latency import Draft, Target
from tests.simulator.physics import Drafter, System

FREE_VERIFY = Target(weights_s=0.01, token_s=1e-9)


def drafter(alpha: float, cost: Draft, **kwargs: float) -> Drafter:
    """A drafter without draft temperatures."""
    return Drafter(acceptance=Iid(alpha), cost=cost, temperature_scales={None: 1.0}, **kwargs)


def gains(system: System, batch_size: int, max_drafts: int = 12) -> list[float]:
    """Gains of the drafter `d` for K = 1, 2, ..."""
    found = system.log_gains((batch_size,), max_drafts)
    return [math.exp(found[batch_size, arm_config("d", k)]) for k in range(1, max_drafts + 1)]


def test_the_walltime_factor_of_a_free_verify() -> None:
    """(1 - alpha^(K+1)) / ((1 - alpha)(cK + 1)) with c = 0.1 (Leviathan et al., theorem 3.8);
    its best K at alpha = 0.8 is 6.
    """
    found = gains(System(target=FREE_VERIFY, drafters={"d": drafter(0.8, Draft(step_s=0.001))}), 1)
    for k, factor in enumerate(found, start=1):
        assert factor == pytest.approx((1 - 0.8 ** (k + 1)) / (0.2 * (0.1 * k + 1)))
    assert found.index(max(found)) + 1 == 6


def test_some_k_helps_if_alpha_exceeds_the_cost() -> None:
    """K = 1 gives (1 + alpha) / (1 + c) (corollary 3.9)."""
    for alpha, cost in ((0.3, 0.2), (0.2, 0.3)):
        system = System(
            target=FREE_VERIFY, drafters={"d": drafter(alpha, Draft(step_s=0.01 * cost))}
        )
        assert gains(system, 1)[0] == pytest.approx((1 + alpha) / (1 + cost))
        assert (max(gains(system, 1)) > 1) == (alpha > cost)


def test_gains_vanish_where_compute_is_the_limit() -> None:
    """At a ridge of 20 tokens a batch of 64 pays for every draft, accepted or not."""
    target = Target(weights_s=0.01, token_s=0.0005)
    system = System(target=target, drafters={"d": drafter(0.8, Draft())})
    assert max(gains(system, 1)) > 2
    assert gains(system, 64)[0] == pytest.approx(1.8 / 2)
    assert max(gains(system, 64)) < 1


def test_idle_drafters_cost_their_share() -> None:
    """K = 0 with a drafter loaded is slower by its share at every batch size."""
    system = System(target=FREE_VERIFY, drafters={"d": drafter(0.8, Draft(), idle_share=0.05)})
    found = system.log_gains((1, 16), 1)
    assert found[1, arm_config("d", 0)] == found[16, arm_config("d", 0)]
    assert found[1, arm_config("d", 0)] == pytest.approx(-math.log(1.05))


def test_off_rates() -> None:
    """One token per row and step."""
    system = System(target=Target(weights_s=0.01, token_s=0.001), drafters={})
    assert system.off_tokens_per_s((1, 20)) == pytest.approx({1: 100.0, 20: 1000.0})


def test_draft_temperatures_scale_acceptance() -> None:
    """A worse draft temperature is a lower acceptance probability, nothing else."""
    warm = Drafter(
        acceptance=Iid(0.8), cost=Draft(step_s=0.001), temperature_scales={None: 1.0, 0.7: 0.75}
    )
    found = System(target=FREE_VERIFY, drafters={"d": warm}).log_gains((1,), 3)
    cold = gains(
        System(target=FREE_VERIFY, drafters={"d": drafter(0.6, Draft(step_s=0.001))}), 1, 3
    )
    for k in (1, 2, 3):
        assert math.exp(found[1, arm_config("d", k, 0.7)]) == pytest.approx(cold[k - 1])


@pytest.mark.parametrize(("k", "proposes"), [(2, 1.0), (5, 1.0), (4, 0.4)])
def test_rates_against_simulated_rounds(k: int, proposes: float) -> None:
    """Null: tokens over seconds of 40,000 simulated rounds is the computed rate.

    A batch of 8 rows at the ridge, so that time is linear in tokens; each row has a proposal or
    not. 5 standard errors over 100 chunks (alpha = 6e-7); power above 0.999 against 2 %.
    """
    random = np.random.default_rng(k)
    target = Target(weights_s=0.01, token_s=0.00125, host_s=0.001)
    cost = Draft(step_s=0.0004, row_s=0.0001, host_s=0.0001)
    system = System(target=target, drafters={"d": drafter(0.7, cost, proposes=proposes)})
    logs = []
    for _ in range(100):
        shape = (400, 8)
        lengths = np.where(random.random(shape) < proposes, k, 0)
        alive = random.random((*shape, k)) < 0.7
        accepted = np.minimum(np.cumprod(alive, axis=2).sum(axis=2), lengths)
        tokens = float((1 + accepted).sum())
        verified = (1.0 + lengths).sum(axis=1)
        rows = np.full(400, 8.0)
        seconds = target.step_s(rows, verified) + cost.proposal_s(rows, np.full(400, float(k)))
        logs.append(math.log(tokens / float(seconds.sum())))
    error = np.std(logs, ddof=1) / 10
    expected = math.log(system.off_tokens_per_s((8,))[8] * gains(system, 8)[k - 1])
    assert error < 0.003
    assert abs(np.mean(logs) - expected) < 5 * error


def test_request_errors_are_the_derivative() -> None:
    """At K = 1 the elasticity of tau alpha / (1 + alpha); larger K feel requests more."""
    system = System(target=FREE_VERIFY, drafters={"d": drafter(0.7, Draft())})
    errors = system.request_std_errors(8, 0.005)
    assert errors[arm_config("d", 1)] == pytest.approx(0.005 * 0.7 / 1.7, rel=1e-3)
    by_k = [errors[arm_config("d", k)] for k in range(1, 9)]
    assert by_k == sorted(by_k)

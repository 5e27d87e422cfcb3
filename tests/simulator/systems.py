"""Random hardware and drafters, over the range that real ones span."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tests.simulator.acceptance import Acceptance, Iid, Mixture, TwoState
from tests.simulator.latency import Draft, Experts, Target
from tests.simulator.physics import Drafter, System

TEMPERATURES: tuple[float | None, ...] = (None, 0.0, 0.7, 1.3)
"""Draft temperatures of a drafter that samples; requests are at temperature 1."""

_REQUEST_TEMPERATURE = 1.0
_GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))
_TILES = tuple(range(16, 1025, 16))

Generator = np.random.Generator


def random_system(generator: Generator, num_drafters: int | None = None) -> System:
    """A target on some hardware, with two to four drafters of different kinds.

    Hardware: memory-bound up to a ridge of 8 (a CPU) to 400 tokens (a large GPU), smooth or as a
    staircase of tiles or captured sizes, some of it with slow kernels for few tokens; a fifth of
    the targets are mixtures of experts. Acceptance is i.i.d., autocorrelated or mixed over tasks,
    and on some traffic low for all drafters.
    """
    target = random_target(generator)
    makers: Mapping[str, Callable[[Generator, Target, float], Drafter]] = {
        "eagle": _eagle,
        "draft": _draft_model,
        "parallel": _parallel,
        "ngram": _ngram,
    }
    count = num_drafters or int(generator.integers(2, len(makers) + 1))
    names = sorted(generator.choice(list(makers), count, replace=False).tolist())
    fit = generator.uniform(0.5, 1.0)  # of all drafters to the traffic
    return System(
        target=target, drafters={name: makers[name](generator, target, fit) for name in names}
    )


def random_target(generator: Generator) -> Target:
    """Hardware and a target on it."""
    weights_s = _log_uniform(generator, 0.002, 0.03)
    ridge = _log_uniform(generator, 8, 400)
    stairs = [(), _GRAPH_SIZES, _TILES][generator.integers(3)]
    slow_few = generator.random() < 0.2
    experts = None
    if generator.random() < 0.2:
        experts = Experts(
            count=int(generator.choice([32, 64, 128])),
            active=int(generator.choice([2, 4, 8])),
            weights_share=generator.uniform(0.6, 0.9),
        )
    return Target(
        weights_s=weights_s,
        token_s=weights_s / ridge,
        row_s=weights_s * generator.uniform(0.0, 0.02),
        host_s=weights_s * generator.uniform(0.02, 0.2),
        sizes=stairs,
        few_tokens=4 if slow_few else 0,
        few_factor=generator.uniform(1.05, 1.3) if slow_few else 1.0,
        experts=experts,
    )


def random_acceptance(generator: Generator, alpha: float) -> Acceptance:
    """A law with about this acceptance probability per token."""
    law = generator.integers(3)
    if law == 0:
        return Iid(alpha)
    if law == 1:
        return _bursty(generator, alpha)
    share = generator.uniform(0.3, 0.7)
    apart = generator.uniform(0.05, 0.2)
    tasks = (Iid(min(alpha + apart, 0.95)), _bursty(generator, max(alpha - apart, 0.05)))
    return Mixture(((share, tasks[0]), (1 - share, tasks[1])))


def _bursty(generator: Generator, alpha: float) -> TwoState:
    """Easy and hard stretches of 5 to 50 tokens, evenly long."""
    apart = generator.uniform(0.3, 1.0) * min(alpha, 0.97 - alpha)
    leave = 1 / _log_uniform(generator, 5, 50)
    return TwoState(easy=alpha + apart, hard=alpha - apart, leave_easy=leave, leave_hard=leave)


def _eagle(generator: Generator, target: Target, fit: float) -> Drafter:
    """A light sequential head that accepts much."""
    return _drafter(generator, target, fit, cost=(0.03, 0.12), alpha=(0.5, 0.85))


def _draft_model(generator: Generator, target: Target, fit: float) -> Drafter:
    """A small model: slower steps, more accepted."""
    return _drafter(generator, target, fit, cost=(0.08, 0.3), alpha=(0.55, 0.9))


def _parallel(generator: Generator, target: Target, fit: float) -> Drafter:
    """All drafts from one pass, at a lower acceptance."""
    return _drafter(generator, target, fit, cost=(0.06, 0.2), alpha=(0.4, 0.75), parallel=True)


def _ngram(generator: Generator, target: Target, fit: float) -> Drafter:
    """Copies from the context: nearly free, deterministic, and often without a proposal."""
    return Drafter(
        acceptance=random_acceptance(generator, fit * generator.uniform(0.4, 0.9)),
        cost=Draft(host_s=0.01 * target.weights_s),
        temperature_scales={None: 1.0},
        proposes=generator.uniform(0.1, 0.6),
    )


def _drafter(
    generator: Generator,
    target: Target,
    fit: float,
    *,
    cost: tuple[float, float],
    alpha: tuple[float, float],
    parallel: bool = False,
) -> Drafter:
    """A drafter whose step costs a share of the target's, with a best draft temperature."""
    step_s = target.weights_s * _log_uniform(generator, *cost)
    best = generator.uniform(0.6, 1.4)
    width = generator.uniform(1.0, 3.0)
    # One in four makes idle steps slower by more than what does no harm.
    idle = generator.uniform(0.0, 0.008)
    if generator.random() < 0.25:
        idle = _log_uniform(generator, 0.015, 0.15)
    return Drafter(
        acceptance=random_acceptance(generator, fit * generator.uniform(*alpha)),
        cost=Draft(
            step_s=step_s,
            row_s=step_s * target.token_s / target.weights_s,
            parallel=parallel,
            host_s=0.01 * target.weights_s,
        ),
        temperature_scales={t: _fit(t, best, width) for t in TEMPERATURES},
        idle_share=idle,
    )


def _fit(temperature: float | None, best: float, width: float) -> float:
    """Factor on the acceptance at a draft temperature; None follows the requests."""
    actual = _REQUEST_TEMPERATURE if temperature is None else temperature
    return math.exp(-(((actual - best) / width) ** 2) / 2)


def _log_uniform(generator: Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))

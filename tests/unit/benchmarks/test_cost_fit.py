"""The cost model finds what made the times, and shows it when it cannot."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.benchmarks.cost_fit import RoundWork, fit_cost
from tests.benchmarks.held_out import held_out_predictions, summarise

ROUND_S, LAYER_S, ROW_S, SAMPLED_S = 2e-3, 1e-4, 2e-4, 1e-4
BYTES_PER_S, FLOPS_PER_S = 15e9, 200e9
KV_BYTES_PER_S, ATTENTION_FLOPS_PER_S = 8e9, 50e9
SHARPNESS = 4.0


def work(rows: int, tokens: int, context: int, layers: int, *, sampled: bool = False) -> RoundWork:
    """A round of a model of 3.5 million parameters per layer and a head of 28 million."""
    weights = 3.5e6 * layers + 28e6
    return RoundWork(
        layers=layers,
        rows=rows,
        sampled_tokens=rows * tokens if sampled else 0,
        kv_bytes=1536 * layers * rows * (context + tokens),
        attention_flops=2304 * layers * rows * tokens * (context + tokens),
        weight_bytes=4 * weights,
        flops=2 * weights * rows * tokens,
    )


WORKS = [
    *(work(rows, tokens, 256, 30) for rows in (1, 2, 4, 8, 16, 32, 64) for tokens in range(1, 10)),
    *(work(rows, t, n, 30) for rows in (1, 4, 16) for t in (1, 5) for n in (64, 512, 1024, 2048)),
    *(work(rows, t, 256, depth) for rows in (1, 8, 32) for t in (1, 4, 9) for depth in (5, 10, 20)),
    *(work(rows, t, 256, 30, sampled=True) for rows in (1, 4, 16, 64) for t in (1, 5)),
]


def true_seconds(work: RoundWork) -> float:
    """The law of the synthetic machine."""
    weights, arithmetic = work.weight_bytes / BYTES_PER_S, work.flops / FLOPS_PER_S
    return float(
        ROUND_S
        + LAYER_S * work.layers
        + ROW_S * work.rows
        + SAMPLED_S * work.sampled_tokens
        + work.kv_bytes / KV_BYTES_PER_S
        + work.attention_flops / ATTENTION_FLOPS_PER_S
        + (weights**SHARPNESS + arithmetic**SHARPNESS) ** (1 / SHARPNESS)
    )


def held_out_errors(law: Callable[[RoundWork], float]) -> list[float]:
    """Errors of five-fold cross-validation on times by a law."""
    seconds = [law(work) for work in WORKS]
    predicted = held_out_predictions(
        lambda works, seconds: fit_cost(works, seconds).seconds, WORKS, seconds, num_folds=5
    )
    return [p / s - 1 for p, s in zip(predicted, seconds, strict=True)]


def test_known_parameters_are_recovered() -> None:
    """Times made by the law give back every parameter of it."""
    model = fit_cost(WORKS, [true_seconds(work) for work in WORKS])
    assert model.seconds_per == pytest.approx(
        {
            "rounds": ROUND_S,
            "layers": LAYER_S,
            "rows": ROW_S,
            "sampled_tokens": SAMPLED_S,
            "kv_bytes": 1 / KV_BYTES_PER_S,
            "attention_flops": 1 / ATTENTION_FLOPS_PER_S,
            "weight_bytes": 1 / BYTES_PER_S,
            "flops": 1 / FLOPS_PER_S,
        },
        rel=1e-3,
    )
    assert model.sharpness == pytest.approx(SHARPNESS, rel=1e-3)


def test_noise_stays_within_the_standard_errors() -> None:
    """With 3 % of noise, every parameter lies within four of its standard errors."""
    generator = random.Random(3)
    noisy = [true_seconds(work) * (1 + generator.gauss(0, 0.03)) for work in WORKS]
    model = fit_cost(WORKS, noisy)
    exact = fit_cost(WORKS, [true_seconds(work) for work in WORKS])
    for term, value in model.seconds_per.items():
        assert 0 < model.std_error[term]
        assert abs(value - exact.seconds_per[term]) < 4 * model.std_error[term]


def test_cells_left_out_are_predicted_exactly_by_the_right_model() -> None:
    """Without noise, cross-validation leaves no error."""
    assert summarise(held_out_errors(true_seconds)).max < 1e-3


def test_a_wrong_model_shows_residuals() -> None:
    """Times with steps of 16 tokens, which the model does not know, cannot be predicted."""

    def steps(work: RoundWork) -> float:
        tokens = round(work.flops / (work.weight_bytes / 2))
        return 1e-3 * -(-tokens // 16) * 16 + 1e-3

    errors = summarise(held_out_errors(steps))
    assert errors.median > 0.05
    assert errors.max > 0.3


def test_no_cost_is_negative() -> None:
    """A round that gets faster with context has a free attention, not one that gives time back."""
    model = fit_cost(WORKS, [0.1 / (1 + 1e-9 * work.kv_bytes) for work in WORKS])
    assert min(model.seconds_per.values()) >= 0


def test_a_term_that_no_cell_has_is_free() -> None:
    """Greedy rounds alone say nothing about sampling, and are fitted all the same."""
    greedy = [work for work in WORKS if work.sampled_tokens == 0]
    model = fit_cost(greedy, [true_seconds(work) for work in greedy])
    assert model.seconds_per["sampled_tokens"] == 0
    assert model.seconds(WORKS[0]) == pytest.approx(true_seconds(WORKS[0]), rel=1e-3)


def test_too_few_cells_are_refused() -> None:
    """Fewer cells than parameters have no unique fit."""
    with pytest.raises(ValueError, match="8 cells"):
        fit_cost(WORKS[:8], [1.0] * 8)

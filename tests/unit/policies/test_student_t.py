"""Student's t against scipy."""

from __future__ import annotations

import pytest
from scipy import special, stats

from policies.student_t import regularised_incomplete_beta, upper_quantile, upper_tail


@pytest.mark.parametrize("degrees_of_freedom", [1, 1.5, 2, 3, 7.3, 19, 40, 349, 10_000])
@pytest.mark.parametrize("tail", [1e-9, 1e-4, 0.05 / 24, 0.025, 0.05, 0.2, 0.499, 0.5, 0.7, 0.975])
def test_quantile_agrees_with_scipy(tail: float, degrees_of_freedom: float) -> None:
    """Quantiles differ from scipy's by at most 1e-8, relative or absolute."""
    expected = stats.t.isf(tail, degrees_of_freedom)
    found = upper_quantile(tail, degrees_of_freedom)
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 5.5, 30, 1000])
@pytest.mark.parametrize("t", [0.0, 1e-3, 0.5, 2.0, 10.0, 500.0])
def test_tail_agrees_with_scipy(t: float, degrees_of_freedom: float) -> None:
    """Upper tails keep their digits where they are small."""
    expected = stats.t.sf(t, degrees_of_freedom)
    assert upper_tail(t, degrees_of_freedom) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 3.0), (9.5, 0.5), (0.5, 40.0)])
@pytest.mark.parametrize("x", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0])
def test_incomplete_beta_agrees_with_scipy(x: float, a: float, b: float) -> None:
    """The beta function is right on both sides of the switch of its continued fraction."""
    expected = special.betainc(a, b, x)
    assert regularised_incomplete_beta(x, 1 - x, a, b) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("tail", "degrees_of_freedom", "name"),
    [
        (0.0, 5.0, "tail"),
        (1.0, 5.0, "tail"),
        (float("nan"), 5.0, "tail"),
        (0.05, 0.5, "degrees_of_freedom"),
        (0.05, float("inf"), "degrees_of_freedom"),
    ],
)
def test_out_of_range_is_refused(tail: float, degrees_of_freedom: float, name: str) -> None:
    """Arguments outside their range are named in the error."""
    with pytest.raises(ValueError, match=name):
        upper_quantile(tail, degrees_of_freedom)

"""Pearson's chi-square test against a fully specified law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from scipy.stats import chi2, ncx2

_SMALLEST_EXPECTED = 5.0

Outcome = TypeVar("Outcome", bound=Hashable)


def pooled(law: Mapping[Outcome, float], n: int) -> list[list[Outcome]]:
    """Cells of outcomes with at least five expected each; rare outcomes share a cell."""
    cells: list[list[Outcome]] = []
    rare: list[Outcome] = []
    for outcome, p in sorted(law.items(), key=lambda item: -item[1]):
        if p * n >= _SMALLEST_EXPECTED:
            cells.append([outcome])
        elif p > 0:
            rare.append(outcome)
    if sum(law[outcome] for outcome in rare) * n >= _SMALLEST_EXPECTED:
        cells.append(rare)
    else:
        cells[-1].extend(rare)
    return cells


def p_value(observed: Iterable[Outcome], law: Mapping[Outcome, float]) -> float:
    """Probability of a fit this bad or worse under the law; 0 for an impossible outcome."""
    counts = Counter(observed)
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return 0.0
    n = counts.total()
    statistic = 0.0
    cells = pooled(law, n)
    for cell in cells:
        expected = n * sum(law[outcome] for outcome in cell)
        statistic += (sum(counts[outcome] for outcome in cell) - expected) ** 2 / expected
    return float(chi2.sf(statistic, len(cells) - 1))


def power(law: Mapping[Outcome, float], n: int, *, alpha: float, effect: float) -> float:
    """Probability to notice a law at Cohen's distance w = `effect` from the stated one."""
    degrees = len(pooled(law, n)) - 1
    return float(ncx2.sf(chi2.isf(alpha, degrees), degrees, n * effect**2))

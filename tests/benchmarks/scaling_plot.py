"""The picture of `make bench-scaling`: round time over verify tokens, measured and fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import vl_convert

_WIDTH, _HEIGHT = 560, 380


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotPoint:
    """One cell of the picture.

    Attributes:
        batch_size: Series.
        tokens_per_row: Horizontal.
        median_s: Measured.
        low_s: Fastest sample.
        high_s: Slowest sample.
        fitted_s: What the model says.
    """

    batch_size: int
    tokens_per_row: int
    median_s: float
    low_s: float
    high_s: float
    fitted_s: float


def write_plot(path: Path, points: Sequence[PlotPoint], title: str) -> None:
    """Write an SVG: points with their range, the fit as lines, a colour per batch size.

    Args:
        path: File; its folder exists.
        points: At least one.
        title: Above the picture.
    """
    rows = [
        {
            "batch size": point.batch_size,
            "tokens": point.tokens_per_row,
            "measured": 1000 * point.median_s,
            "low": 1000 * point.low_s,
            "high": 1000 * point.high_s,
            "fitted": 1000 * point.fitted_s,
        }
        for point in points
    ]
    base = alt.Chart(alt.InlineData(values=rows), width=_WIDTH, height=_HEIGHT).encode(
        x=alt.X("tokens:O", title="verify tokens per row", axis=alt.Axis(labelAngle=0)),
        color=alt.Color("batch size:O", title="batch size", scale=alt.Scale(scheme="viridis")),
    )
    scale = alt.Scale(type="log")
    axis = "milliseconds per round (points: measured, lines: fit)"
    layers = (
        base.mark_line().encode(y=alt.Y("fitted:Q", title=axis, scale=scale)),
        base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_point(filled=True, opacity=1, size=45).encode(y=alt.Y("measured:Q", scale=scale)),
    )
    spec = alt.layer(*layers).properties(title=title).to_json()
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")

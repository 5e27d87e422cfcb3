"""The course of a training run as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from engine.training.state import Evaluation

PLOT_NAME = "training"
_WIDTH, _HEIGHT, _SCALE = 520, 150, 2.0


def write_plots(folder: Path, curve: Sequence[Evaluation]) -> None:
    """Write `training.png` and `training.svg`: loss, training acceptance, held-out tokens.

    Args:
        folder: Exists.
        curve: At least one evaluation.
    """
    spec = _chart(curve).to_json()
    (folder / f"{PLOT_NAME}.svg").write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
    (folder / f"{PLOT_NAME}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=_SCALE))


def _chart(curve: Sequence[Evaluation]) -> alt.VConcatChart:
    panels = (
        _panel([_row(e, e.loss, "loss") for e in curve], "loss", None),
        _panel(list(_acceptance(curve)), "training acceptance", "draft position"),
        _panel(list(_tokens(curve)), "held-out tokens per round", "task"),
    )
    chart: alt.VConcatChart = alt.vconcat(*panels).resolve_scale(color="independent")
    return chart


def _acceptance(curve: Sequence[Evaluation]) -> Iterator[dict[str, Any]]:
    for evaluation in curve:
        for position, share in enumerate(evaluation.acceptance, start=1):
            yield _row(evaluation, share, str(position))


def _tokens(curve: Sequence[Evaluation]) -> Iterator[dict[str, Any]]:
    for evaluation in curve:
        for task, tokens in evaluation.tokens_per_round.items():
            yield _row(evaluation, tokens, task)


def _row(evaluation: Evaluation, value: float, series: str) -> dict[str, Any]:
    return {"minutes": evaluation.elapsed_s / 60, "value": value, "series": series}


def _panel(rows: list[dict[str, Any]], title: str, legend: str | None) -> alt.Chart:
    colour = alt.Color("series:N", title=legend, legend=alt.Legend() if legend else None)
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows), width=_WIDTH, height=_HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X("minutes:Q", title="minutes of training"),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
            color=colour,
        )
    )
    return chart

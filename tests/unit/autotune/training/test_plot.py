"""The picture of a run: both files, with every curve in them."""

from __future__ import annotations

from pathlib import Path

from autotune.training.plot import write_plots
from engine.training.state import Evaluation


def evaluation(minute: int) -> Evaluation:
    """A point of the curve."""
    return Evaluation(
        elapsed_s=60.0 * minute,
        step=minute,
        num_tokens=minute,
        loss=2.0 / minute,
        acceptance=(0.4, 0.2),
        tokens_per_round={"chat": 1.4, "code & <copy>": 1.5 + minute / 10},
        score=1.5,
    )


def test_both_pictures(tmp_path: Path) -> None:
    """Vector and raster, with the axes' titles and the tasks' names."""
    write_plots(tmp_path, [evaluation(1), evaluation(2)])
    svg = (tmp_path / "training.svg").read_text(encoding="utf-8")
    for words in (
        "loss",
        "training acceptance",
        "held-out tokens per round",
        "minutes of training",
        "chat",
        "code &amp; &lt;copy&gt;",
    ):
        assert words in svg
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_single_evaluation_is_a_picture_too(tmp_path: Path) -> None:
    """A run shorter than two intervals."""
    write_plots(tmp_path, [evaluation(1)])
    assert (tmp_path / "training.svg").stat().st_size > 1000

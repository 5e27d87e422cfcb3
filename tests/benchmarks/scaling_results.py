"""From timed rounds to fitted models and how far off they are on cells left out of the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch

from engine.checkpoint.config import ModelConfig
from engine.drafters.factory import weight_bytes
from engine.kv_cache import KvCache
from tests.benchmarks.cost_fit import CostModel, RoundWork, fit_cost
from tests.benchmarks.draft_fit import DraftModel, DraftWork, fit_draft
from tests.benchmarks.held_out import ErrorSummary, held_out_predictions, summarise
from tests.benchmarks.scaling_cells import RoundCell
from tests.benchmarks.scaling_rounds import RoundTime

_NUM_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Predicted:
    """A measured time beside a prediction that has not seen it.

    Attributes:
        cell: What was timed.
        seconds: Measured, in the order they were taken.
        predicted_s: By a model fitted without this cell.
        fitted_s: By the model fitted to every cell.
    """

    cell: RoundCell
    seconds: tuple[float, ...]
    predicted_s: float
    fitted_s: float

    @property
    def median_s(self) -> float:
        """What the models are held to."""
        return median(self.seconds)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.median_s - 1

    @property
    def spread(self) -> float:
        """Median distance of the samples from their median, relative."""
        return median(abs(s / self.median_s - 1) for s in self.seconds)

    def to_json(self) -> dict[str, object]:
        """Figures of this cell."""
        return {
            **asdict(self.cell),
            "seconds_median": self.median_s,
            "seconds_low": min(self.seconds),
            "seconds_high": max(self.seconds),
            "num_samples": len(self.seconds),
            "predicted_s": self.predicted_s,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class FittedVerify:
    """The verify passes and their model."""

    model: CostModel
    rows: list[Predicted]

    @property
    def errors(self) -> ErrorSummary:
        """On cells left out."""
        return summarise([row.error for row in self.rows])


@dataclass(frozen=True, slots=True)
class FittedDrafts:
    """One drafter's proposals, their model, and the whole rounds they are part of.

    Attributes:
        model: Of the proposals.
        rows: The proposals.
        rounds: The same rounds as a whole, predicted by both models; the model of the verify
            passes has seen none of them.
    """

    model: DraftModel
    rows: list[Predicted]
    rounds: list[Predicted]

    @property
    def errors(self) -> ErrorSummary:
        """Of proposals, on cells left out."""
        return summarise([row.error for row in self.rows])

    @property
    def round_errors(self) -> ErrorSummary:
        """Of whole rounds."""
        return summarise([row.error for row in self.rounds])


def round_work(cell: RoundCell, config: ModelConfig, dtype: torch.dtype) -> RoundWork:
    """What the verify pass of a round does.

    Args:
        cell: The round.
        config: Of the whole target.
        dtype: Of weights, keys and values.
    """
    depth = replace(config, num_layers=cell.num_layers)
    # The embedding is looked up, not multiplied with; the head is there even where it is tied.
    weights = weight_bytes(depth, dtype) - config.vocab_size * config.hidden_size * dtype.itemsize
    visible = cell.context_len + cell.tokens_per_row
    per_token = 4 * config.num_heads * config.head_dim * cell.num_layers * visible
    return RoundWork(
        layers=cell.num_layers,
        rows=cell.batch_size,
        sampled_tokens=cell.num_tokens if cell.temperature > 0 else 0,
        kv_bytes=cell.batch_size * visible * KvCache.bytes_per_token(depth, dtype),
        attention_flops=cell.num_tokens * per_token,
        weight_bytes=weights,
        flops=2 * cell.num_tokens * weights / dtype.itemsize,
    )


def fit_verify(
    times: Mapping[RoundCell, Sequence[RoundTime]], config: ModelConfig, dtype: torch.dtype
) -> FittedVerify:
    """Fit the verify passes of the cells without a drafter.

    Args:
        times: All cells.
        config: Of the whole target.
        dtype: Of weights, keys and values.
    """
    cells = [cell for cell in times if cell.drafter is None]
    works = [round_work(cell, config, dtype) for cell in cells]
    samples = [tuple(t.verify_s for t in times[cell]) for cell in cells]
    medians = [median(sample) for sample in samples]
    unseen = held_out_predictions(
        lambda works, seconds: fit_cost(works, seconds).seconds,
        works,
        medians,
        num_folds=_NUM_FOLDS,
    )
    model = fit_cost(works, medians)
    fitted = [model.seconds(work) for work in works]
    columns = zip(cells, samples, unseen, fitted, strict=True)
    return FittedVerify(model, [Predicted(*column) for column in columns])


def fit_drafts(
    times: Mapping[RoundCell, Sequence[RoundTime]],
    drafter: str,
    verify: CostModel,
    config: ModelConfig,
    dtype: torch.dtype,
) -> FittedDrafts:
    """Fit one drafter's proposals.

    Args:
        times: All cells.
        drafter: Name of one that was timed.
        verify: Model of the verify passes.
        config: Of the whole target.
        dtype: Of weights, keys and values.
    """
    cells = [cell for cell in times if cell.drafter == drafter]
    works = [
        DraftWork(rows=cell.batch_size, num_drafts=cell.num_speculative_tokens) for cell in cells
    ]
    samples = [tuple(t.draft_s for t in times[cell]) for cell in cells]
    medians = [median(sample) for sample in samples]
    unseen = held_out_predictions(
        lambda works, seconds: fit_draft(works, seconds).seconds,
        works,
        medians,
        num_folds=_NUM_FOLDS,
    )
    model = fit_draft(works, medians)
    rows, rounds = [], []
    for cell, work, sample, draft_s in zip(cells, works, samples, unseen, strict=True):
        rows.append(Predicted(cell, sample, draft_s, model.seconds(work)))
        verify_s = verify.seconds(round_work(cell, config, dtype))
        whole = tuple(t.total_s for t in times[cell])
        rounds.append(Predicted(cell, whole, verify_s + draft_s, verify_s + model.seconds(work)))
    return FittedDrafts(model, rows, rounds)

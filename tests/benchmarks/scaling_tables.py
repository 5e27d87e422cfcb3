"""The parameters and errors of `make bench-scaling` as text, with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.benchmarks.cost_fit import CostModel
from tests.benchmarks.held_out import ErrorSummary
from tests.benchmarks.scaling_results import FittedDrafts, FittedVerify, Predicted

_NUM_WORST = 10


@dataclass(frozen=True, slots=True)
class _Unit:
    """How a term of the model is shown: as a time per unit, or as a speed.

    Attributes:
        key: Name with its unit.
        scale: From seconds, or from units per second, to the unit shown.
        is_speed: Shown as the inverse.
    """

    key: str
    scale: float
    is_speed: bool = False


_UNITS = {
    "rounds": _Unit("overhead_ms", 1e3),
    "layers": _Unit("layer_overhead_us", 1e6),
    "rows": _Unit("row_us", 1e6),
    "sampled_tokens": _Unit("sampled_token_us", 1e6),
    "kv_bytes": _Unit("kv_gb_per_s", 1e-9, is_speed=True),
    "attention_flops": _Unit("attention_gflop_per_s", 1e-9, is_speed=True),
    "weight_bytes": _Unit("weights_gb_per_s", 1e-9, is_speed=True),
    "flops": _Unit("linear_gflop_per_s", 1e-9, is_speed=True),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A fitted parameter with its unit.

    Attributes:
        key: Name with its unit.
        value: None for a speed that the cells cannot tell from infinite.
        std_error: Standard error, None likewise.
    """

    key: str
    value: float | None
    std_error: float | None


def parameters(model: CostModel) -> list[Parameter]:
    """The parameters of the verify model in units for people."""
    found = []
    for term, unit in _UNITS.items():
        cost, error = model.seconds_per[term], model.std_error[term]
        if not unit.is_speed:
            found.append(Parameter(unit.key, cost * unit.scale, error * unit.scale))
        elif error < cost:
            speed = unit.scale / cost
            found.append(Parameter(unit.key, speed, speed * error / cost))
        else:
            found.append(Parameter(unit.key, None, None))
    return [*found, Parameter("knee_sharpness", model.sharpness, None)]


def tables(verify: FittedVerify, drafts: Mapping[str, FittedDrafts]) -> str:
    """Everything that is printed about the fits, lines ended."""
    return "\n".join([*_verify_lines(verify), *_draft_lines(drafts)]) + "\n"


def _verify_lines(verify: FittedVerify) -> Iterator[str]:
    yield f"Verify passes: {len(verify.rows)} cells"
    for parameter in parameters(verify.model):
        if parameter.value is None:
            yield f"  {parameter.key:<24} {'-':>12}   no cost found"
        else:
            error = "" if parameter.std_error is None else f" +- {parameter.std_error:.3g}"
            yield f"  {parameter.key:<24} {parameter.value:>12.4g}{error}"
    yield f"  error on cells left out: {_sizes(verify.errors)}"
    yield "  furthest off:"
    yield from _worst(verify.rows)


def _draft_lines(drafts: Mapping[str, FittedDrafts]) -> Iterator[str]:
    for name, fitted in drafts.items():
        model = fitted.model
        yield f"Drafter {name}: {len(fitted.rows)} cells"
        yield (
            f"  first draft   {1e3 * model.first_s:.3f} ms + {1e3 * model.first_row_s:.4f} ms/row"
        )
        yield (
            f"  further draft {1e3 * model.further_s:.3f} ms + "
            f"{1e3 * model.further_row_s:.4f} ms/row"
        )
        yield f"  error on cells left out: {_sizes(fitted.errors)}"
        yield f"  error of whole rounds:   {_sizes(fitted.round_errors)}"


def _worst(rows: list[Predicted]) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: -abs(row.error))[:_NUM_WORST]:
        yield (
            f"    {row.cell!s:<50} {1e3 * row.median_s:8.1f} ms "
            f"({1e3 * min(row.seconds):.1f} to {1e3 * max(row.seconds):.1f}), "
            f"predicted {1e3 * row.predicted_s:.1f}, {row.error:+.1%}"
        )


def _sizes(errors: ErrorSummary) -> str:
    return f"median {errors.median:.1%}, p95 {errors.p95:.1%}, largest {errors.max:.1%}"

"""The rotary-position settings of a checkpoint, under any of the names they are stored by.

Older files keep `rope_theta` and `rope_scaling` apart and may call the kind `type`; newer
ones put everything under `rope_parameters`. A setting that is not understood is refused by
name: a rotary embedding that is slightly wrong still produces fluent text.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.checkpoint.files import JsonObject
from engine.errors import CheckpointError, UnsupportedModelError

DEFAULT_ROPE_THETA = 10_000.0

_SCALING_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
_COMMON_KEYS = frozenset({"type", "rope_type", "rope_theta"})
_MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions are divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between blended.

    Attributes:
        factor: Divisor of the slow frequencies.
        low_freq_factor: Turns within the original context at or below which a frequency is slow.
        high_freq_factor: Turns at or above which it is fast.
        original_max_position_embeddings: The context length trained before scaling, tokens.

    Source: Llama 3.1 release (Grattafiori et al. 2024).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


RopeScaling = LinearScaling | Llama3Scaling


def read_rope(config: JsonObject) -> tuple[float, RopeScaling | None]:
    """Rotary base and scaling of a checkpoint configuration.

    Args:
        config: The whole `config.json`.

    Returns:
        `rope_theta` and the scaling, None when positions are used as they are.

    Raises:
        CheckpointError: A value is missing, malformed, or contradicts another.
        UnsupportedModelError: A kind or a setting that the engine does not compute.
    """
    settings = [
        found
        for found in (config.child("rope_parameters"), config.child("rope_scaling"))
        if found is not None and found.values
    ]
    scalings = {_read_scaling(found) for found in settings}
    if len(scalings) > 1:
        raise CheckpointError(
            f"{config.path}: rope_parameters and rope_scaling contradict each other"
        )
    thetas = {
        found.positive("rope_theta")
        for found in (config, *settings)
        if found.values.get("rope_theta") is not None
    }
    if len(thetas) > 1:
        listed = ", ".join(f"{theta:g}" for theta in sorted(thetas))
        raise CheckpointError(f"{config.path}: rope_theta is given twice with values {listed}")
    theta = thetas.pop() if thetas else DEFAULT_ROPE_THETA
    return theta, scalings.pop() if scalings else None


def _read_scaling(settings: JsonObject) -> RopeScaling | None:
    kind = _read_kind(settings)
    allowed = _SCALING_KEYS[kind] | _COMMON_KEYS
    for key, value in settings.values.items():
        neutral = value is None or (key in {"partial_rotary_factor", "factor"} and value == 1)
        if key not in allowed and not neutral:
            raise UnsupportedModelError(
                str(settings.error(key, f"not supported with rope type '{kind}'"))
            )
    if kind == "linear":
        return LinearScaling(factor=settings.positive("factor"))
    if kind == "llama3":
        return _read_llama3(settings)
    return None


def _read_kind(settings: JsonObject) -> str:
    given = {key: value for key, value in settings.values.items() if value is not None}
    kind = given.get("rope_type", given.get("type"))
    if kind is None:
        # A base alone is the newer spelling of no scaling; anything else needs its kind.
        if set(given) <= {"rope_theta"}:
            return "default"
        raise CheckpointError(f"{settings.path}: rotary settings {sorted(given)} have no rope_type")
    if given.get("type", kind) != kind:
        raise settings.error("type", "contradicts rope_type")
    if not isinstance(kind, str) or kind not in _SCALING_KEYS:
        supported = ", ".join(_SCALING_KEYS)
        raise UnsupportedModelError(
            f"{settings.path}: rope type {kind!r} is not supported (supported: {supported})"
        )
    return kind


def _read_llama3(settings: JsonObject) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=settings.positive("factor"),
        low_freq_factor=settings.positive("low_freq_factor"),
        high_freq_factor=settings.positive("high_freq_factor"),
        original_max_position_embeddings=settings.integer(
            "original_max_position_embeddings", low=1, high=_MAX_POSITIONS
        ),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise settings.error("low_freq_factor", "must be below high_freq_factor")
    return scaling

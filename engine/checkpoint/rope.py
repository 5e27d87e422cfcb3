"""Inverse frequencies of the rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.rope_config import LinearScaling, Llama3Scaling


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Angle per position of each rotary pair, scaling included.

    Computed in float64, since the error of a frequency grows with the position it is
    multiplied by.

    Returns:
        [head_dim / 2] float32, radians per position, fastest first.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-exponents
    match config.rope_scaling:
        case LinearScaling(factor=factor):
            frequencies = frequencies / factor
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
    return frequencies.to(torch.float32)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Blend each frequency between itself and itself / factor by its turns per context."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor

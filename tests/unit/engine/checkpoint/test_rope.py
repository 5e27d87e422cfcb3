"""Rotary frequencies against the definition, written out one frequency at a time."""

from __future__ import annotations

import math

import pytest
import torch

from engine.checkpoint.config import read_config
from engine.checkpoint.rope import inverse_frequencies
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY


def plain_frequencies(head_dim: int, theta: float) -> list[float]:
    """The base to the power of -2 i / d, for each pair i."""
    return [1.0 / theta ** (2 * pair / head_dim) for pair in range(head_dim // 2)]


def llama3_frequency(frequency: float, factor: float, low: float, high: float, old: int) -> float:
    """The published rule by wavelength, with its three branches."""
    wavelength = 2 * math.pi / frequency
    if wavelength < old / high:
        return frequency
    if wavelength > old / low:
        return frequency / factor
    smooth = (old / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_unscaled_frequencies() -> None:
    """Without scaling the frequencies are powers of the base."""
    found = inverse_frequencies(read_config(HEALTHY))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(plain_frequencies(8, 1e4), rel=1e-7)


def test_linear_frequencies() -> None:
    """Linear scaling divides every frequency by the factor."""
    found = inverse_frequencies(read_config(CASES / "H11_rope_linear_old_key"))
    assert found.tolist() == pytest.approx([f / 4 for f in plain_frequencies(8, 1e4)], rel=1e-7)


def test_llama3_frequencies() -> None:
    """Llama 3 scaling keeps fast, divides slow and blends the frequencies between."""
    found = inverse_frequencies(read_config(CASES / "H10_rope_llama3"))
    plain = plain_frequencies(8, 1e4)
    wanted = [llama3_frequency(f, 8.0, 1.0, 4.0, 32) for f in plain]
    assert wanted[0] == plain[0]
    assert wanted[-1] == plain[-1] / 8
    assert found.tolist() == pytest.approx(wanted, rel=1e-7)


def test_head_size_of_its_own_sets_the_frequencies() -> None:
    """The frequencies follow head_dim, not hidden_size / heads."""
    found = inverse_frequencies(read_config(CASES / "H15_head_dim"))
    assert found.tolist() == pytest.approx(plain_frequencies(16, 1e4), rel=1e-7)

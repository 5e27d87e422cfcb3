"""Sampling and verification by the readable references, so that their parts can be exchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.rng import Purpose

_USERS = ("engine.kernels.sampling", "engine.verify_batch")


def use_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """No native kernels for distributions, draws and verification."""
    for module in _USERS:
        monkeypatch.setattr(f"{module}.native_for", lambda *values: None)


Noise = Callable[[int, int, int, Purpose], float]
"""Stands in for `engine.rng.uniform`."""


def use_noise(monkeypatch: pytest.MonkeyPatch, noise: Noise) -> None:
    """Exchange the generator that the engine draws, accepts and emits with."""
    use_references(monkeypatch)
    for module in _USERS:
        monkeypatch.setattr(f"{module}.uniform", noise)

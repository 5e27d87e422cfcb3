"""The native kernels at every vector width, whatever this processor's own is."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.kernels.native import build as build_module
from engine.kernels.native.bindings import Library, loaded
from engine.kernels.native.build import build

_PLAIN = "-march=x86-64" if platform.machine() == "x86_64" else "-march=native"
# Without the matrix unit, whose own sums differ from those of vectors.
_VECTORS = ("-march=native", "-mno-amx-tile") if _PLAIN != "-march=native" else (_PLAIN,)
# Pretending to have AVX-512 makes the compiler cut each vector into what the processor has.
_PRETENDED = (*_VECTORS, "-D__AVX512F__", "-Wno-psabi")
_WIDTHS: dict[str, tuple[str, ...]] = {"own": (), "4": (_PLAIN,), "16": _PRETENDED}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Library]:
    """Name of a width -> its library, built once per session."""
    if not any(shutil.which(name) for name in ("g++", "c++")):
        pytest.fail("no C++ compiler: install g++")
    cache = tmp_path_factory.mktemp("kernels")
    made: dict[str, Library] = {}

    def get(width: str) -> Library:
        if width not in made:
            made[width] = loaded() if width == "own" else _build(cache, _WIDTHS[width])
        return made[width]

    return get


def _build(cache: Path, target: tuple[str, ...]) -> Library:
    kept = [flag for flag in build_module._FLAGS if not flag.startswith("-march")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_FLAGS", (*kept, *target))
        return Library(str(build(cache)))


@pytest.fixture(params=list(_WIDTHS))
def native(
    request: pytest.FixtureRequest,
    libraries: Callable[[str], Library],
    monkeypatch: pytest.MonkeyPatch,
) -> Library:
    """The library that native layers and attention use in this test."""
    library = libraries(request.param)
    for part in ("linear", "attention", "decoder"):
        monkeypatch.setattr(f"engine.kernels.native.{part}.loaded", lambda: library)
    return library


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)

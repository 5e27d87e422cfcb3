"""Builds the native kernels for this processor with the compiler that is at hand."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent
_MAIN = "kernels.cpp"
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: it may reorder sums, and results must not depend on the compiler's mood.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
_TIMEOUT_S = 120.0


class BuildError(Exception):
    """The kernels cannot be built here; the message says why, in one line."""


def build(cache: Path) -> Path:
    """The library built for this processor, from the cache where it is there already.

    Args:
        cache: Our cache folder; created if needed.

    Raises:
        BuildError: There is no compiler, it fails, or the cache cannot be written.
    """
    compiler = _find_compiler()
    openmp = _openmp_of_torch()
    name = f"kernels-{_identity(compiler, openmp)}.so"
    built = cache / "native" / name
    if built.is_file():
        return built
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch) / name
            _compile(compiler, openmp, made)
            # Several processes may build at once: each puts a whole file in place.
            made.replace(built)
    except OSError as error:
        raise BuildError(f"{built.parent}: {error.strerror}") from error
    return built


def _find_compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    if wanted:
        raise BuildError(f"CXX = {wanted}: no such compiler")
    raise BuildError("no C++ compiler; install g++ for a faster CPU path")


def _openmp_of_torch() -> Path | None:
    """The OpenMP library that torch has loaded: two of them would fight for the cores."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in maps.splitlines():
        path = Path(line.rsplit(" ", 1)[-1])
        if path.name.startswith("libgomp"):
            return path
    return None


def _identity(compiler: str, openmp: Path | None) -> str:
    """What the library depends on: sources, flags, compiler, instruction sets, OpenMP."""
    digest = hashlib.sha256()
    for source in (*sorted(_SOURCES.glob("*.h")), _SOURCES / _MAIN):
        digest.update(source.read_bytes())
    # The predefined macros tell the compiler's version and the processor's instruction sets.
    macros = _run([compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    for part in (compiler, *_FLAGS, str(openmp), macros):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _compile(compiler: str, openmp: Path | None, library: Path) -> None:
    compiled = library.with_suffix(".o")
    _run([compiler, *_FLAGS, "-fopenmp", "-c", str(_SOURCES / _MAIN), "-o", str(compiled)])
    threads = "-fopenmp" if openmp is None else str(openmp)
    _run([compiler, "-shared", str(compiled), threads, "-o", str(library)])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} exited with {done.returncode}: {lines[0]}")
    return done.stdout

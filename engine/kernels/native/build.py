"""Builds the native kernels for this processor with the compiler that is at hand."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import torch

_SOURCES = Path(__file__).parent
_MAIN = "kernels.cpp"
_COMPILERS = ("g++", "c++")
# No -ffast-math: it may reorder sums, and results must not depend on the compiler's mood.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
_TIMEOUT_S = 120.0
_DIGEST_BYTES = hashlib.sha256().digest_size


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
    if _is_whole(built):
        return built
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch) / name
            _compile(compiler, openmp, made)
            # Half a library would crash the process that loads it; loaders ignore what follows.
            content = made.read_bytes()
            made.write_bytes(content + hashlib.sha256(content).digest())
            # Several processes may build at once: each puts a whole file in place.
            made.replace(built)
    except OSError as error:
        raise BuildError(f"{built.parent}: {error.strerror}") from error
    return built


def _is_whole(library: Path) -> bool:
    """The file is there and ends with the digest of the rest."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    rest, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(rest).digest() == digest


def _find_compiler() -> list[str]:
    """The compiler as a command, with the arguments that `CXX` may give it."""
    wanted = os.environ.get("CXX", "").strip()
    if wanted:
        program, *arguments = shlex.split(wanted)
        found = shutil.which(program)
        if found is None:
            raise BuildError(f"CXX = {wanted}: no such compiler")
        return [found, *arguments]
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise BuildError("no C++ compiler; install g++ for a faster CPU path")


def _openmp_of_torch() -> Path | None:
    """The OpenMP library that torch uses: two of them would fight for the cores."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Address, permissions, offset, device and inode come before the path.
    fields = [line.split(maxsplit=5) for line in maps.splitlines()]
    mapped = [Path(parts[5]) for parts in fields if len(parts) == 6]
    found = [path for path in mapped if path.name.startswith("libgomp")]
    home = Path(torch.__file__).parent
    own = [path for path in found if home in path.parents or home.name + ".libs" in path.parts]
    return next(iter([*own, *found]), None)


def _identity(compiler: list[str], openmp: Path | None) -> str:
    """What the library depends on: sources, flags, compiler, instruction sets, OpenMP."""
    digest = hashlib.sha256()
    for source in (*sorted(_SOURCES.glob("*.h")), _SOURCES / _MAIN):
        digest.update(source.read_bytes())
    # The predefined macros tell the compiler's version and the processor's instruction sets.
    macros = _run([*compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    for part in (*compiler, *_FLAGS, str(openmp), macros):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _compile(compiler: list[str], openmp: Path | None, library: Path) -> None:
    compiled = library.with_suffix(".o")
    _run([*compiler, *_FLAGS, "-fopenmp", "-c", str(_SOURCES / _MAIN), "-o", str(compiled)])
    threads = "-fopenmp" if openmp is None else str(openmp)
    _run([*compiler, "-shared", str(compiled), threads, "-o", str(library)])


def _run(command: list[str]) -> str:
    """What a command prints; the whole group is killed when it takes too long."""
    try:
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    with running:
        try:
            printed, complaints = running.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(running.pid, signal.SIGKILL)
            raise BuildError(f"{command[0]}: timed out after {_TIMEOUT_S:g} s") from error
    if running.returncode != 0:
        lines = complaints.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} exited with {running.returncode}: {lines[0]}")
    return printed

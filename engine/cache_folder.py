"""Where files that can be made again are kept: fetched models and built kernels."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """Our cache folder: `$SPECTUNED_CACHE`, else `spectuned` in the user's cache folder."""
    own = os.environ.get("SPECTUNED_CACHE")
    if own:
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks to ignore a relative path.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "spectuned"

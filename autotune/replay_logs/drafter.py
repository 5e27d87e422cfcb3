"""The drafter that a replay was asked for, or why it cannot be had from a log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from autotune.errors import ConfigError
from autotune.shipped import shipped_drafters
from engine.cache_folder import default_cache
from engine.checkpoint.hub import resolve_model
from engine.drafters.alone import refusal
from engine.drafters.factory import DrafterSpec, from_folder, layer_skip, ngram

_LAYER_SKIP = re.compile(r"layer-skip-(\d+)")


def describe_drafter(text: str, note: Callable[[str], None]) -> DrafterSpec:
    """The drafter that a text names.

    Args:
        text: As in `ReplaySettings.drafter`.
        note: Told about downloads.

    Raises:
        ConfigError: Its drafts need more of the target than its tokens.
        CheckpointError: There is no such drafter, or its configuration cannot be read.
        DownloadError: It could not be fetched.
    """
    spec = _spec(text, note)
    if reason := refusal(spec):
        raise ConfigError(
            f"drafter = {text}: it {reason}; from a log, ngram and draft models can be scored "
            "(spectune tune scores every drafter, on answers that it records)"
        )
    return spec


def _spec(text: str, note: Callable[[str], None]) -> DrafterSpec:
    if text == "ngram":
        return ngram()
    if match := _LAYER_SKIP.fullmatch(text):
        return layer_skip(int(match[1]))
    name, equals, place = text.partition("=")
    if not equals:
        name, place = "", text
    shipped = shipped_drafters()
    if place in shipped and not Path(place).exists():
        return from_folder(name or place, shipped[place])
    folder = resolve_model(place, default_cache(), note)
    return from_folder(name or folder.name, folder)

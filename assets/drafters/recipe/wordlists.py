"""Reads the text lists of this folder and splits them in training and held-out items."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
HELDOUT_SHARE = 0.1


@dataclass(frozen=True)
class Item:
    """One line of a list.

    Attributes:
        kind: The word before the first colon, or "" in lists without kinds.
        text: The rest of the line, with escaped line ends made real.
        source: The name of the list and the line number.
    """

    kind: str
    text: str
    source: str


def read_items(name: str, *, kinds: bool = True) -> list[Item]:
    """Reads a list with one item a line.

    Args:
        name: The file name in this folder.
        kinds: Whether each line starts with a kind and a colon.

    Returns:
        The items in file order. An empty line counts only in a list without kinds.
    """
    items = []
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        kind, text = "", line.strip()
        if kinds:
            if not text:
                continue
            kind, text = text.split(": ", 1)
        # A doubled backslash stands for itself, so that snippets can hold "\n" as text.
        parts = text.split("\\\\")
        text = "\\".join(part.replace("\\n", "\n").replace("\\t", "\t") for part in parts)
        items.append(Item(kind, text, f"{Path(name).stem}:{number}"))
    return items


def by_kind(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Groups items by their kind.

    Args:
        items: The items to group.

    Returns:
        The items of each kind, in their first order.
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.kind, []).append(item)
    return groups


def item_hash(text: str) -> str:
    """Gives the fixed hash by which an item is held out.

    Args:
        text: The text of the item.

    Returns:
        A hexadecimal hash, the same on every machine.
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def split(items: Sequence[Item], *, heldout: bool, per_kind: bool = True) -> list[Item]:
    """Picks the training or the held-out part of a list.

    The tenth of the items with the lowest hashes is held out, at least one. Empty items mean
    that nothing is added to a prompt; they are in both parts.

    Args:
        items: All items of the list.
        heldout: Whether to return the held-out items.
        per_kind: Whether to take a tenth of each kind, or of the whole list.

    Returns:
        The chosen items in their first order.
    """
    chosen: set[Item] = set()
    for group in by_kind(items).values() if per_kind else [items]:
        full = [item for item in group if item.text]
        count = max(1, round(len(full) * HELDOUT_SHARE))
        chosen.update(sorted(full, key=lambda item: item_hash(item.text))[:count])
    return [item for item in items if not item.text or (item in chosen) == heldout]


def fillers() -> dict[str, list[str]]:
    """Reads the words that fill the gaps of the passage templates.

    Returns:
        The possible words of each gap.
    """
    groups = by_kind(read_items("fillers.txt"))
    return {kind: [item.text for item in items] for kind, items in groups.items()}

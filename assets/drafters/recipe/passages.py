"""Makes the passages of the copy prompts: filled templates, small data files, docstrings."""

import ast
import csv
import io
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from wordlists import Item, fillers

MIN_WORDS, MAX_WORDS = 40, 120
MODULE_LIMIT = 14
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}
FILLERS = fillers()
_PLAIN = re.compile(r"[A-Za-z][A-Za-z'-]*")


def fill(template: str, rng: random.Random) -> str:
    """Fills the gaps of a passage template.

    Args:
        template: Text with gaps such as {name} and choices such as [one|two].
        rng: The source of chance.

    Returns:
        The text with all gaps filled.
    """

    def date() -> str:
        month = rng.choice(FILLERS["month"])
        return f"{rng.randint(1, 28)} {month}" if rng.random() < 0.6 else f"the {month} holiday"

    names = rng.sample(FILLERS["name"], 3)
    cities = rng.sample(FILLERS["city"], 2)
    values = {
        "name": names[0],
        "name2": names[1],
        "name3": names[2],
        "city": cities[0],
        "city2": cities[1],
        "date": date(),
        "date2": date(),
        "time": f"{rng.randint(7, 21)}:{rng.choice(('00', '10', '15', '30', '45'))}",
        "num": str(rng.randint(2, 9)),
        "num2": str(rng.randint(2, 9)),
        "minutes": str(rng.choice((10, 15, 20, 25, 35, 40, 45, 55, 90))),
        "percent": str(rng.randint(11, 89)),
        "count": str(rng.randint(110, 9900)),
        "price": f"${rng.randint(4, 480)}.{rng.choice(('00', '50', '95', '20'))}",
        "year": str(rng.randint(1790, 1990)),
        "year2": str(rng.randint(2026, 2034)),
        "code": f"{rng.choice('ABKLRTX')}{rng.choice('CDMPQZ')}{rng.randint(100, 999)}",
    }
    values.update(
        {kind: rng.choice(FILLERS[kind]) for kind in ("street", "item", "product", "pet")}
    )
    text = re.sub(r"\[([^\]|]+\|[^\]]+)\]", lambda m: rng.choice(m[1].split("|")), template)
    return text.format_map(values)


def _records(rng: random.Random, kind: str) -> list[dict[str, str | int]]:
    """Makes a few records of one kind."""
    count = rng.randint(4, 6)
    names = rng.sample(FILLERS["name"], count)
    cities = rng.sample(FILLERS["city"], count)
    months = rng.sample(FILLERS["month"], count)
    numbers = rng.sample(range(3, 980), count)
    rows: list[dict[str, str | int]] = []
    for name, city, month, number in zip(names, cities, months, numbers, strict=True):
        product = rng.choice(FILLERS["product"])
        day = rng.randint(1, 28)
        if kind == "orders":
            rows.append({"order": number, "customer": name, "product": product, "city": city})
        elif kind == "staff":
            rows.append({"name": name, "office": city, "desk": number, "start": f"{day} {month}"})
        elif kind == "stock":
            rows.append({"product": product, "pieces": number, "store": city, "contact": name})
        elif kind == "results":
            rows.append({"runner": name, "club": city, "seconds": number, "month": month})
        else:
            item = rng.choice(FILLERS["item"])
            rows.append({"invoice": number, "client": name, "goods": item, "due": f"{month} {day}"})
    return rows


DATA_KINDS = ("orders", "staff", "stock", "results", "invoices")
DATA_LAYOUTS = ("csv", "json", "lines", "pairs")


def data_passage(rng: random.Random, kind: str) -> tuple[str, str]:
    """Makes a small data file as text.

    Args:
        rng: The source of chance.
        kind: One of DATA_KINDS.

    Returns:
        The text and a name for its source.
    """
    layout = rng.choice(DATA_LAYOUTS)
    rows = _records(rng, kind)
    if layout == "csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue().strip()
    elif layout == "json":
        text = "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]"
    elif layout == "lines":
        text = "\n".join(" | ".join(str(value) for value in row.values()) for row in rows)
    else:
        text = "\n".join("; ".join(f"{key}={value}" for key, value in row.items()) for row in rows)
    return text, f"data:{kind}:{layout}"


def misspell(text: str, rng: random.Random) -> str:
    """Puts typing errors in a text.

    Args:
        text: The clean text.
        rng: The source of chance.

    Returns:
        The text with about one error in ten words.
    """
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    for place in rng.sample(places, min(len(places), max(3, len(words) // 10))):
        word, at = words[place], rng.randint(1, len(words[place]) - 3)
        change = rng.randrange(3)
        if change == 0:
            words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif change == 1:
            words[place] = word[:at] + word[at + 1 :]
        else:
            words[place] = word[:at] + word[at] + word[at:]
    return " ".join(words)


def pick_word(text: str, rng: random.Random) -> str:
    """Picks a longer word of a text.

    Args:
        text: The text to pick from.
        rng: The source of chance.

    Returns:
        A word in lower case, or "the" where the text has no long word.
    """
    words = sorted({word for word in _PLAIN.findall(text) if len(word) > 5 and word.islower()})
    return rng.choice(words) if words else "the"


def _is_prose(paragraph: str) -> bool:
    """Tells whether a docstring paragraph is plain text of a fitting length."""
    words = paragraph.split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or not paragraph.isascii():
        return False
    if not paragraph[0].isupper() or paragraph[-1] not in ".!?":
        return False
    if re.search(r">>>|--|::|__|https?:|[{}|\\<>=*~^@#]|\$", paragraph):
        return False
    plain = sum(bool(_PLAIN.fullmatch(word.strip("\"'`(),.;:?!"))) for word in words)
    return plain >= 0.88 * len(words)


def _paragraphs(tree: ast.Module) -> Iterator[str]:
    """Yields the fitting paragraphs of all docstrings of a module."""
    for node in ast.walk(tree):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if not isinstance(node, kinds):
            continue
        for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
            lines = [line.strip() for line in paragraph.strip().splitlines()]
            if any(re.match(r"([-*o+]|\d+[.)])\s", line) for line in lines):
                continue
            text = re.sub(r"\s+", " ", " ".join(lines).replace("``", "").replace("`", ""))
            if text and _is_prose(text):
                yield text


def stdlib_passages() -> list[Item]:
    """Collects docstring paragraphs from the pure Python modules of the standard library.

    Returns:
        One item a paragraph; its kind is the top module it comes from. No module gives more
        than MODULE_LIMIT paragraphs, and none is given twice.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    counts: dict[str, int] = {}
    items = []
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        top = inner.parts[0].removesuffix(".py")
        if SKIPPED_FOLDERS & set(inner.parts) or top not in sys.stdlib_module_names:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for text in _paragraphs(tree):
            if text in seen or counts.get(top, 0) >= MODULE_LIMIT:
                continue
            seen.add(text)
            counts[top] = counts.get(top, 0) + 1
            items.append(Item(top, text, f"stdlib:{top}"))
    return items

"""Writes the prompts on which the drafters are trained and checked.

The prompts come from the text lists beside this script and from docstrings of the Python
standard library. Equal seeds and equal interpreters give equal files. SOURCES.md says where
each text comes from and under which licence.

Held-out prompts share no item with the training prompts: every list of tasks, topics, themes,
forms and passage templates, and the list of stdlib modules, is split by a fixed hash.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap import all_ngrams, body_text, ngrams, shared, workload_texts
from passages import (
    DATA_KINDS,
    FILLERS,
    data_passage,
    fill,
    misspell,
    pick_word,
    stdlib_passages,
)
from wordlists import Item, by_kind, read_items, split

HERE = Path(__file__).resolve().parent
DEFAULT_WORKLOAD = HERE.parents[2] / "autotune" / "workloads" / "default.jsonl"
TEMPERATURES = (0.0, 0.7, 1.0)
MAX_TOKENS = 176
TRAIN_COUNTS = {"code": 1000, "chat": 1100, "copy": 800, "open": 700}
HELDOUT_COUNTS = dict.fromkeys(TRAIN_COUNTS, 24)
LANGUAGES = (*["Python"] * 6, *["JavaScript"] * 2, "Go", "Rust", "TypeScript", "Java")
LANGUAGE_NAMES = {"python": "Python", "javascript": "JavaScript", "go": "Go", "rust": "Rust"}
LANGUAGE_NAMES |= {"sql": "SQL", "bash": "Bash"}
SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "Answer clearly and briefly.",
    "You are a careful assistant who follows instructions exactly.",
    "You are a friendly expert.",
)
SYSTEM_SHARE = 0.12
OTHER_WORDS = ("object", "lantern", "signal", "meadow", "window", "ticket", "pattern", "bridge")
DROP_SIZE, REPORT_SIZE = 8, 13
ONE_WORDING = ("code", "chat")  # tasks in which a form and an item meet only once
HELDOUT_SEED = 1


@dataclass(frozen=True)
class Prompt:
    """One prompt before it gets a temperature.

    Attributes:
        task: The kind of work: code, chat, copy or open.
        text: What the user says.
        source: The template and the item that it was made from.
    """

    task: str
    text: str
    source: str


def cycle(items: Sequence[Item], rng: random.Random) -> Iterator[Item]:
    """Yields all items in a random order, again and again.

    Args:
        items: The items, at least one.
        rng: The source of chance.

    Yields:
        The next item.
    """
    while True:
        yield from rng.sample(items, len(items))


def _lines(name: str, *, heldout: bool) -> list[str]:
    """Reads one part of a list without kinds; its empty line means that nothing is added."""
    return [item.text for item in split(read_items(name, kinds=False), heldout=heldout)]


def _join(*parts: str) -> str:
    """Joins the parts that are not empty with spaces."""
    return " ".join(part for part in parts if part)


def code_prompts(rng: random.Random, *, heldout: bool) -> Iterator[Prompt]:
    """Makes prompts about programs, queries, commands and patterns.

    Args:
        rng: The source of chance.
        heldout: Whether to use the held-out items.

    Yields:
        Prompts without end, not all distinct.
    """
    tasks = split(read_items("code_tasks.txt"), heldout=heldout)
    snippets = split(read_items("snippets.txt"), heldout=heldout, per_kind=False)
    forms = by_kind(split(read_items("code_forms.txt"), heldout=heldout))
    asks = split(read_items("snippet_forms.txt", kinds=False), heldout=heldout)
    tails = _lines("code_tails.txt", heldout=heldout)
    tasks_again, snippets_again = cycle(tasks, rng), cycle(snippets, rng)
    while True:
        if rng.random() < 0.12:
            code, ask = next(snippets_again), rng.choice(asks)
            head = ask.text.format(lang=LANGUAGE_NAMES[code.kind])
            text = f"{head}\n\n```{code.kind}\n{code.text}\n```"
            yield Prompt("code", text, f"{ask.source}+{code.source}")
            continue
        task = next(tasks_again)
        form = rng.choice(forms[task.kind])
        text = form.text.format(lang=rng.choice(LANGUAGES), task=task.text)
        tail = rng.choice(tails) if task.kind in ("fn", "class") else ""
        yield Prompt("code", _join(text, tail), f"{form.source}+{task.source}")


def chat_prompts(rng: random.Random, *, heldout: bool) -> Iterator[Prompt]:
    """Makes questions and requests about everyday and technical topics.

    Args:
        rng: The source of chance.
        heldout: Whether to use the held-out items.

    Yields:
        Prompts without end, not all distinct.
    """
    topics = split(read_items("chat_topics.txt"), heldout=heldout)
    forms = by_kind(split(read_items("chat_forms.txt"), heldout=heldout))
    leads = _lines("chat_leads.txt", heldout=heldout)
    tails = _lines("chat_tails.txt", heldout=heldout)
    for topic in cycle(topics, rng):
        form = rng.choice(forms[topic.kind])
        lead = rng.choice(leads) if rng.random() < 0.5 else ""
        tail = rng.choice(tails) if rng.random() < 0.7 else ""
        text = _join(lead, form.text.format(topic=topic.text), tail)
        yield Prompt("chat", text, f"{form.source}+{topic.source}")


def open_prompts(rng: random.Random, *, heldout: bool) -> Iterator[Prompt]:
    """Makes requests for stories, letters, poems and adverts.

    Args:
        rng: The source of chance.
        heldout: Whether to use the held-out items.

    Yields:
        Prompts without end, not all distinct.
    """
    themes = split(read_items("open_starts.txt"), heldout=heldout)
    forms = by_kind(split(read_items("open_forms.txt"), heldout=heldout))
    tails = _lines("open_tails.txt", heldout=heldout)
    for theme in cycle(themes, rng):
        form = rng.choice(forms[theme.kind])
        name = rng.choice(FILLERS["name"]).split()[0]
        extras = [
            tail.format(name=name, city=rng.choice(FILLERS["city"]))
            for tail in rng.sample(tails, rng.choice((0, 1, 1, 2)))
        ]
        text = _join(form.text.format(theme=theme.text), *extras)
        yield Prompt("open", text, f"{form.source}+{theme.source}")


def copy_prompts(rng: random.Random, *, heldout: bool) -> Iterator[Prompt]:
    """Makes requests whose answers repeat much of a passage.

    Half of the passages are docstring paragraphs; the others are filled templates and small
    data files.

    Args:
        rng: The source of chance.
        heldout: Whether to use the held-out items.

    Yields:
        Prompts without end, not all distinct.
    """
    forms = by_kind(split(read_items("copy_forms.txt"), heldout=heldout))
    templates = split(read_items("copy_templates.txt", kinds=False), heldout=heldout)
    passages = stdlib_passages()
    modules = sorted({item.kind for item in passages})
    chosen = {m.text for m in split([Item("", m, m) for m in modules], heldout=heldout)}
    docs = cycle([item for item in passages if item.kind in chosen], rng)
    notes = cycle(templates, rng)
    kinds = [k.text for k in split([Item("", k, k) for k in DATA_KINDS], heldout=heldout)]
    while True:
        dice = rng.random()
        if dice < 0.5:
            item = next(docs)
            form, passage, source = rng.choice(forms["text"]), item.text, item.source
        elif dice < 0.87:
            item = next(notes)
            form = rng.choice(forms["note"] if rng.random() < 0.5 else forms["text"])
            passage, source = fill(item.text, rng), item.source
        else:
            form = rng.choice(forms["data"])
            passage, source = data_passage(rng, rng.choice(kinds))
        ask = form.text.replace("{word}", pick_word(passage, rng))
        ask = ask.replace("{other}", rng.choice(OTHER_WORDS))
        if ask.endswith(" [typo]"):
            ask, passage = ask.removesuffix(" [typo]"), misspell(passage, rng)
        text = f"{ask}\n\n{passage}" if rng.random() < 0.7 else f"{passage}\n\n{ask}"
        yield Prompt("copy", text, f"{form.source}+{source}")


MAKERS: dict[str, Callable[..., Iterator[Prompt]]] = {
    "code": code_prompts,
    "chat": chat_prompts,
    "copy": copy_prompts,
    "open": open_prompts,
}


def collect(
    counts: dict[str, int],
    rng: random.Random,
    *,
    heldout: bool,
    banned: Iterable[tuple[str, ...]] = (),
) -> list[Prompt]:
    """Makes distinct prompts of every task.

    Args:
        counts: How many prompts of each task to make.
        rng: The source of chance.
        heldout: Whether to use the held-out items.
        banned: Sequences of DROP_SIZE words that no prompt may have.

    Returns:
        The prompts, task by task. A pool that gives nothing new for long ends early.
    """
    forbidden = set(banned)
    prompts: list[Prompt] = []
    for task, count in counts.items():
        seen: set[str] = set()
        for tries, prompt in enumerate(MAKERS[task](rng, heldout=heldout)):
            if len(seen) == count or tries > 50 * count:
                break
            key = prompt.source if task in ONE_WORDING else prompt.text
            if key in seen or not ngrams(prompt.text, DROP_SIZE).isdisjoint(forbidden):
                continue
            seen.add(key)
            prompts.append(prompt)
    return prompts


def bodies(prompts: Sequence[Prompt], rng: random.Random) -> list[dict[str, Any]]:
    """Turns prompts to request bodies and shuffles them.

    Args:
        prompts: The prompts.
        rng: The source of chance.

    Returns:
        One body a prompt; the temperatures are balanced inside each task.
    """
    made: list[dict[str, Any]] = []
    number: Counter[str] = Counter()
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt.text}]
        if rng.random() < SYSTEM_SHARE:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM_TEXTS)})
        temperature = TEMPERATURES[number[prompt.task] % len(TEMPERATURES)]
        number[prompt.task] += 1
        made.append(
            {
                "model": "default",
                "messages": messages,
                "temperature": temperature,
                "max_tokens": MAX_TOKENS,
                "metadata": {"task": prompt.task, "source": prompt.source},
            }
        )
    rng.shuffle(made)
    return made


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one JSON object a line.

    Args:
        path: The file to write.
        rows: The objects.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def report(
    train: Sequence[dict[str, Any]], heldout: Sequence[dict[str, Any]], workload: Sequence[str]
) -> Iterator[str]:
    """Describes the two sets and what they share.

    Args:
        train: The training bodies.
        heldout: The held-out bodies.
        workload: The texts of the default workload.

    Yields:
        One line at a time.
    """
    for name, rows in (("train", train), ("heldout", heldout)):
        for task in MAKERS:
            chosen = [row for row in rows if row["metadata"]["task"] == task]
            heat = sorted(Counter(row["temperature"] for row in chosen).items())
            sizes = sorted(len(body_text(row).split()) for row in chosen) or [0]
            at = [sizes[len(sizes) * part // 20] for part in (1, 10, 18)]
            yield f"{name} {task}: {len(chosen)} temperatures {heat} words p5/p50/p90 {at}"
    train_texts = [body_text(row) for row in train]
    for size in (DROP_SIZE, REPORT_SIZE):
        known = all_ngrams(train_texts, size)
        for name, texts in (
            ("heldout", [body_text(row) for row in heldout]),
            ("default workload", list(workload)),
        ):
            hits = shared(texts, known, size)
            yield f"{size}-grams: {hits} of {len(texts)} {name} prompts share one with train"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script.

    Args:
        argv: The arguments, those of the process by default.

    Returns:
        The exit status: 1 if a pool was too small for its count.
    """
    parser = argparse.ArgumentParser(description="Writes train.jsonl and heldout.jsonl.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the training prompts")
    parser.add_argument("--workload", type=Path, default=DEFAULT_WORKLOAD, help="what to avoid")
    args = parser.parse_args(argv)
    workload = workload_texts(args.workload)
    banned = all_ngrams(workload, DROP_SIZE)
    rng = random.Random(args.seed)
    train = bodies(collect(TRAIN_COUNTS, rng, heldout=False, banned=banned), rng)
    rng = random.Random(HELDOUT_SEED)
    heldout = bodies(collect(HELDOUT_COUNTS, rng, heldout=True), rng)
    write_jsonl(args.out / "train.jsonl", train)
    write_jsonl(args.out / "heldout.jsonl", heldout)
    sys.stdout.writelines(line + "\n" for line in report(train, heldout, workload))
    wanted = sum(TRAIN_COUNTS.values()) + sum(HELDOUT_COUNTS.values())
    return int(len(train) + len(heldout) < wanted)


if __name__ == "__main__":
    sys.exit(main())

"""A worker with a search of ours: `python -m tests.support.fake_worker NAME`.

All but the search is the real `autotune.service.worker`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autotune.errors import TrafficError
from autotune.progress import Progress, Stage
from autotune.service.worker import Tune, main
from autotune.settings import TuneSettings
from store.records import Publication, PublicationSlot
from store.repository import Store
from tests.contract.store_samples import make_run
from tests.documents import NGRAM, document

REQUEST_TEXT = "the secret text of a request"


def begin(settings: TuneSettings, store: Store) -> str:
    """Begin a run as the real search does."""
    run = make_run(settings=settings.model_dump(mode="json"), started_at=datetime.now(UTC))
    store.begin_run(run)
    return run.run_id


def publish(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Search successfully, with a print in between as a library might do it."""
    progress.plan([Stage("Search", 1.0)])
    progress.begin("Search")
    progress.update(0.5, "half of it")
    progress.note("a drafter was skipped")
    sys.stdout.write("printed by a library\n")
    sys.stdout.flush()
    run_id = begin(settings, store)
    publication = store.publish("scope", run_id, _render)
    store.finish_run(run_id, "done", None, datetime.now(UTC))
    return publication


def find_nothing(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Find no valid trial."""
    return None


def hang(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Take for ever, with a child process."""
    begin(settings, store)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    progress.note(f"child {child.pid}")
    time.sleep(600)
    return None


def hang_deaf(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Take for ever and do not listen to SIGTERM either, as native code may."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hang(settings, store, studies, progress)


def hang_in_publication(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Take for ever while the store is locked for writing."""

    def render(slot: PublicationSlot) -> bytes:
        progress.note("in the publication")
        time.sleep(600)
        return b""

    return store.publish("scope", begin(settings, store), render)


def hang_once(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Take for ever the first time, then search successfully."""
    search = publish if store.runs() else hang
    return search(settings, store, studies, progress)


def crash(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Crash in native code."""
    begin(settings, store)
    ctypes.string_at(0)
    return None


def fail(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Report bad input."""
    raise TrafficError("requests.jsonl: does not exist")


def fail_with_text(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Fail in a way nobody thought of, with an error that quotes a request."""
    raise ValueError(REQUEST_TEXT)


def allocate(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Need 4 GiB of address space."""
    progress.note(f"allocated {len(bytearray(4 << 30))}")
    return None


def show_environment(
    settings: TuneSettings, store: Store, studies: Path, progress: Progress
) -> Publication | None:
    """Tell what was given."""
    progress.note(f"{studies} {settings.seed} {os.getpgid(0) == os.getpid()}")
    return None


def _render(slot: PublicationSlot) -> bytes:
    shown = document(NGRAM)
    refresh_after = slot.created_at + timedelta(days=1)
    identity = shown.identity.model_copy(update={"refresh_after": refresh_after})
    return shown.model_copy(update={"identity": identity}).to_bytes()


SEARCHES: dict[str, Tune] = {
    search.__name__: search
    for search in (
        publish,
        find_nothing,
        hang,
        hang_deaf,
        hang_in_publication,
        hang_once,
        crash,
        fail,
        fail_with_text,
        allocate,
        show_environment,
    )
}

if __name__ == "__main__":
    sys.exit(main(SEARCHES[sys.argv[1]]))

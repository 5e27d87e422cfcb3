"""A process for the store's tests: `python -m tests.unit.store.child COMMAND ARGUMENT...`.

It says `ready` once everything is imported and then waits for a line, so that several of them
can be let go at the same moment.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import event
from sqlalchemy.orm import Session

from store import reader
from store.errors import StoreError
from store.records import PublicationSlot
from store.repository import Store
from store.session import Database

NOBODY_ID = 65534


def say(text: str) -> None:
    """Tell the parent, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def render(slot: PublicationSlot) -> bytes:
    """A document of several pages that tells its place, so that a torn one would show."""
    return f"{slot.epoch} {slot.generation}\n".encode() * 500


def die() -> None:
    """End as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def render_and_die(slot: PublicationSlot) -> bytes:
    """Die while the document is written."""
    die()
    return render(slot)


def arm(point: str) -> None:
    """Die when the next transaction that has a session comes to a point."""
    event.listen(Session, point, lambda *args: die())


def open_store(path: str) -> None:
    """Open and say which publications there are."""
    with Store.open(path) as store:
        say(f"open {len(store.scopes())}")


def open_and_die(path: str, point: str) -> None:
    """Die at a point of the transaction that creates or migrates the tables."""
    event.listen(
        Session,
        "after_begin",
        lambda session, transaction, connection: (
            arm(point) if connection.get_execution_options().get("spectuned_writes") else None
        ),
    )
    Store.open(path)


def publish(path: str, run_id: str, count: str) -> None:
    """Publish many generations and report each after its commit."""
    with Store.open(path) as store:
        for _ in range(int(count)):
            published = store.publish("scope", run_id, render)
            say(f"{published.generation} {published.sha256}")


def publish_and_die(path: str, run_id: str, point: str) -> None:
    """Die in the middle of a publication."""
    with Store.open(path) as store:
        if point == "in_render":
            store.publish("scope", run_id, render_and_die)
        arm(point)
        store.publish("scope", run_id, render)


def read_as_nobody(path: str) -> None:
    """Read and then try to write, without permission to write."""
    drop_privileges()
    try:
        with Store.open(path, read_only=True) as store:
            newest = store.latest_any()
            say(f"read {newest.generation if newest else None}")
    except StoreError as error:
        say(f"{type(error).__name__} {error}")
    try:
        Store.open(path)
    except StoreError as error:
        say(f"{type(error).__name__} {error}")


def read_plainly_as_nobody(path: str) -> None:
    """Read without the database layer, without permission to write."""
    drop_privileges()
    say(f"read {reader.newest(path)[0].generation}")


def read_slowly_as_nobody(path: str) -> None:
    """Stay in a reading transaction until the parent says so."""
    drop_privileges()
    database = Database(Path(path), read_only=True)
    try:
        with database.reading() as session:
            session.connection().exec_driver_sql("SELECT count(*) FROM publications")
            say("reading")
            sys.stdin.readline()
    except StoreError as error:
        say(f"{type(error).__name__} {error}")


def drop_privileges() -> None:
    """Become an account that may not write, after importing all that may be needed."""
    with tempfile.TemporaryDirectory() as folder:
        Store.open(Path(folder) / "warm-up.db").close()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY_ID)
        os.setuid(NOBODY_ID)


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command
    for command in (
        open_store,
        open_and_die,
        publish,
        publish_and_die,
        read_as_nobody,
        read_plainly_as_nobody,
        read_slowly_as_nobody,
    )
}

if __name__ == "__main__":
    say("ready")
    sys.stdin.readline()
    COMMANDS[sys.argv[1]](*sys.argv[2:])

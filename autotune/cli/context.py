"""What several commands need: the store that was named, and the document in it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from autotune.cli import exits

if TYPE_CHECKING:
    from autotune.document import PublishedConfig
    from store.records import Publication
    from store.repository import Store

_ALL = -1  # as a limit, SQLite reads it as none


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The global options.

    Attributes:
        store: Path or URL of the store; None for the one in the state folder.
    """

    store: str | None


class NothingPublishedError(click.ClickException):
    """There is no document to tell about."""

    exit_code = exits.NOTHING_PUBLISHED


def store_location(ctx: click.Context) -> str:
    """Path or URL of the store that this invocation works on."""
    options = ctx.find_object(Options)
    if options is not None and options.store is not None:
        return options.store
    from autotune.settings import STORE_FILE, state_dir

    return str(state_dir() / STORE_FILE)


def open_store(ctx: click.Context) -> Store:
    """The store, for reading.

    Raises:
        StoreError: It cannot be read.
    """
    from store.repository import Store

    return Store.open(store_location(ctx), read_only=True)


def latest(ctx: click.Context, *, as_json: bool) -> Publication:
    """The newest publication.

    Args:
        ctx: Names the store.
        as_json: Print `null` where there is none, so that the output is JSON in any case.

    Raises:
        NothingPublishedError: There is none.
        StoreError: The store cannot be read.
    """
    found = publications(ctx, limit=1)
    if found:
        return found[0]
    if as_json:
        click.echo("null")
    raise nothing_published(ctx)


def nothing_published(ctx: click.Context) -> NothingPublishedError:
    """The error with its remedy."""
    from store.location import parse_location

    return NothingPublishedError(
        f"nothing is published in {parse_location(store_location(ctx))}: run `spectune tune`, or "
        "name another store with --store"
    )


def publications(ctx: click.Context, *, limit: int) -> tuple[Publication, ...]:
    """The newest publications, newest first; none where there is no store yet.

    Raises:
        StoreError: The store cannot be read.
    """
    from store import reader
    from store.errors import StoreNotFoundError

    try:
        return reader.newest(store_location(ctx), limit)
    except StoreNotFoundError:
        return ()


def published_by(ctx: click.Context, run_id: str) -> PublishedConfig | None:
    """The document that a run published, or None.

    Raises:
        StoreError: The store cannot be read.
        ConfigError: As `read_document`.
    """
    for publication in publications(ctx, limit=_ALL):
        if publication.run_id == run_id.lower():
            return read_document(publication)
    return None


def read_document(publication: Publication) -> PublishedConfig:
    """The document of a publication.

    Raises:
        ConfigError: It was written by a version that says what this one does not know.
    """
    from pydantic import ValidationError

    from autotune.document import PublishedConfig
    from autotune.errors import ConfigError

    try:
        return PublishedConfig.model_validate_json(publication.document)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"generation {publication.generation} of {publication.scope} was written by another "
            f"version ({where}: {fault['msg']}): upgrade spectuned, or tune again"
        ) from error


def stop_on_sigterm() -> None:
    """Let SIGTERM end a measuring command like Ctrl-C does: its run is marked, nothing is lost."""

    def stop(_signal: int, _frame: object) -> None:
        raise SystemExit(exits.TERMINATED)

    signal.signal(signal.SIGTERM, stop)

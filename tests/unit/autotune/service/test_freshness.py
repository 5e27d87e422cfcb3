"""Whether a search is due at the start of the service."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from autotune.service.freshness import is_due
from autotune.settings import TuneSettings
from store.repository import Store
from tests.contract.store_samples import NOON, make_run
from tests.documents import NGRAM, document

SETTINGS = TuneSettings(drafters={"small": Path("/models/small")}, window_s=0.1)
HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.open(tmp_path / "store.db") as store:
        yield store


def publish(store: Store, settings: TuneSettings, scope: str = "scope") -> None:
    """Publish with a time of refresh an hour after noon."""
    run = make_run(settings=settings.model_dump(mode="json"))
    store.begin_run(run)
    shown = document(NGRAM)
    identity = shown.identity.model_copy(update={"refresh_after": NOON + HOUR})
    content = shown.model_copy(update={"identity": identity}).to_bytes()
    store.publish(scope, run.run_id, lambda slot: content)


def test_empty_store(store: Store) -> None:
    """Without a publication a search is due."""
    assert is_due(store, SETTINGS, NOON)


def test_fresh_publication(store: Store) -> None:
    """Until the time of refresh it is not, and from then on it is."""
    publish(store, SETTINGS)
    assert not is_due(store, SETTINGS, NOON)
    assert not is_due(store, SETTINGS, NOON + HOUR - timedelta(seconds=1))
    assert is_due(store, SETTINGS, NOON + HOUR)


def test_other_settings(store: Store) -> None:
    """A publication for other settings says nothing, and one beside it does not hide ours."""
    publish(store, SETTINGS, "a")
    publish(store, SETTINGS.model_copy(update={"seed": 1}), "b")
    assert is_due(store, SETTINGS.model_copy(update={"seed": 2}), NOON)
    assert not is_due(store, SETTINGS, NOON)


def test_newest_generation_counts(store: Store) -> None:
    """When the same scope was published with other settings since, a search is due."""
    publish(store, SETTINGS)
    publish(store, SETTINGS.model_copy(update={"seed": 1}))
    assert is_due(store, SETTINGS, NOON)


def test_document_of_another_version(store: Store) -> None:
    """A document that cannot be read says nothing about its age."""
    run = make_run(settings=SETTINGS.model_dump(mode="json"))
    store.begin_run(run)
    store.publish("scope", run.run_id, lambda slot: b'{"schema": "other"}')
    assert is_due(store, SETTINGS, NOON)

"""Whether a search is due as soon as the service starts."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from autotune.document import PublishedConfig
from autotune.settings import TuneSettings
from store.repository import Store


def is_due(store: Store, settings: TuneSettings, now: datetime) -> bool:
    """Whether nothing was published for these settings, or it is past its time of refresh.

    A scope names the target's and the device's fingerprints, which only the worker can tell;
    the run behind a publication holds the settings it was found with.

    Raises:
        StoreError: The store cannot be read.
    """
    wanted = settings.model_dump(mode="json")
    for scope in store.scopes():
        publication = store.latest(scope)
        if publication is None or dict(store.run(publication.run_id).settings) != wanted:
            continue
        try:
            document = PublishedConfig.model_validate_json(publication.document)
        except ValidationError:  # Another version's: what it says of its age is unknown.
            continue
        if now < document.identity.refresh_after:
            return False
    return True

"""The service's state in its log."""

from __future__ import annotations

from structlog.testing import capture_logs

from autotune.service.health import Health


def test_changes_are_logged_once() -> None:
    """A state that stays is no news; a new reason is, and bad news is a warning."""
    health = Health()
    with capture_logs() as logs:
        health.set("idle")
        health.set("idle")
        health.set("failing", "no GPU")
        health.set("failing", "no GPU")
        health.set("failing", "no memory")
    assert [(entry["state"], entry["log_level"]) for entry in logs] == [
        ("idle", "info"),
        ("failing", "warning"),
        ("failing", "warning"),
    ]
    assert [entry.get("reason") for entry in logs] == [None, "no GPU", "no memory"]
    assert (health.state, health.reason) == ("failing", "no memory")

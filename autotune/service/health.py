"""What the service is doing and whether that is what it should do."""

from __future__ import annotations

from typing import Literal

import structlog

_log = structlog.get_logger()

State = Literal["starting", "idle", "tuning", "blocked", "failing"]
"""`blocked` waits for another configuration, `failing` for the next attempt."""


class Health:
    """The service's state with its reason; every change is one line of the log."""

    def __init__(self) -> None:
        """Begin as `starting`."""
        self.state: State = "starting"
        self.reason = ""

    def set(self, state: State, reason: str = "") -> None:
        """Change the state.

        Args:
            state: The new state.
            reason: For the operator; with `blocked` and `failing` it names the remedy.
        """
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        write = _log.warning if state in ("blocked", "failing") else _log.info
        write("health", state=state, **({"reason": reason} if reason else {}))

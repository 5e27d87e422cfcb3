"""What `spectune` says with its exit code. 0 is success."""

from __future__ import annotations

UNEXPECTED = 1
"""A fault of the program, with its traceback; or whoever read the output went away."""

BAD_INPUT = 2
"""An option, a file, a model, a device or the store cannot be used; one line says why."""

REFUSED = 3
"""`export`: the serving engine cannot express the published document. What it can is offered."""

NOTHING_PUBLISHED = 4
"""There is no published document: nothing was tuned yet, or no trial was valid."""

INTERRUPTED = 130
"""Stopped from the keyboard."""

TERMINATED = 143
"""Stopped by SIGTERM."""

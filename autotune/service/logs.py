"""The service's log: one JSON object per line on standard error, written at once.

Events carry names, counts and reasons, never text of a request. A traceback is not written
either: the message of an unexpected exception may quote whatever was being worked on.
"""

from __future__ import annotations

import logging
import sys

import structlog

_FROM_LIBRARIES = "library message"


class _ToStructlog(logging.Handler):
    """Passes what libraries log through the standard library on, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        error = record.exc_info[0] if record.exc_info else None
        structlog.get_logger().log(
            record.levelno,
            _FROM_LIBRARIES,
            logger=record.name,
            message=record.getMessage(),
            **({} if error is None else {"exception": error.__name__}),
        )


def configure_logs() -> None:
    """Send everything that is logged in this process to standard error as JSON lines."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # Flushes after each line.
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_ToStructlog()], force=True)
    # Its warnings about runs that are due while one is going would come at every interval;
    # the timetable says it once.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)

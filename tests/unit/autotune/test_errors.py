"""The error tree's promises: one line, an exit code, and survival of a process border."""

from __future__ import annotations

import pickle

from autotune.errors import AutotuneError, DeviceError, GpuUnavailableError, TrafficError


def test_message_is_one_line() -> None:
    """A line break in a file's name does not break the line of the error."""
    assert (
        str(TrafficError("two\nlines.jsonl: does not exist")) == "two lines.jsonl: does not exist"
    )


def test_errors_leave_with_the_code_for_bad_input() -> None:
    """Everything in the tree ends a command with 2."""
    assert issubclass(GpuUnavailableError, DeviceError)
    assert GpuUnavailableError("x").exit_code == AutotuneError("x").exit_code == 2


def test_errors_cross_a_process_border() -> None:
    """A worker process can hand its error over as it is."""
    copy = pickle.loads(pickle.dumps(DeviceError("device = cuda: no GPU")))
    assert type(copy) is DeviceError
    assert str(copy) == "device = cuda: no GPU"

"""A contestant's process: it answers, stands still in between, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest

from tests.benchmarks.peers import Peer, PeerError

START_TIMEOUT_S = 60.0
COMMAND = {"prompts": [[5]], "batch": 1, "max_tokens": 3, "num_drafts": 0}


def start(tmp_path: Path, behaviour: str) -> Peer:
    """A child that behaves as named."""
    return Peer(
        "fake",
        "tests.unit.benchmarks.fake_contestant",
        {"behaviour": behaviour, "helper": str(tmp_path / "helper")},
        log=tmp_path / "log",
        environment=os.environ,
    )


def state(pid: int) -> str:
    """State letter of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def becomes(condition: Callable[[], bool]) -> bool:
    """True once the condition holds, within a few seconds: signals take a moment."""
    for _ in range(500):
        if condition():
            return True
        sleep(0.01)
    return False


def helper_pid(tmp_path: Path) -> int:
    """The process that the child started."""
    return int((tmp_path / "helper").read_text(encoding="ascii"))


def test_a_contestant_answers_and_its_whole_group_is_stopped(tmp_path: Path) -> None:
    """Between commands the child and what it started stand still."""
    with start(tmp_path, "answer") as peer:
        peer.wait_until_ready(START_TIMEOUT_S)
        helper = helper_pid(tmp_path)
        assert becomes(lambda: state(helper) == "T")
        for _ in range(2):
            answer = peer.ask(COMMAND, START_TIMEOUT_S)
            assert answer["outputs"] == [[5, 5, 5]]
            # Two of three tokens came in the second of two seconds.
            assert answer["decode_tokens_per_s"] == pytest.approx(2.0)
            assert answer["total_tokens_per_s"] == pytest.approx(1.5)
        assert becomes(lambda: state(helper) == "T")
    assert becomes(lambda: state(helper) in ("", "Z"))


def test_an_error_in_the_caller_leaves_no_process(tmp_path: Path) -> None:
    """As Ctrl-C would."""

    def interrupted() -> None:
        with start(tmp_path, "answer") as peer:
            peer.wait_until_ready(START_TIMEOUT_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    helper = helper_pid(tmp_path)
    assert becomes(lambda: state(helper) in ("", "Z"))


def test_a_contestant_that_cannot_load_says_why(tmp_path: Path) -> None:
    """The last lines of its output are in the message."""
    with (
        start(tmp_path, "fail") as peer,
        pytest.raises(PeerError, match=r"fake: ended: .*no such model"),
    ):
        peer.wait_until_ready(START_TIMEOUT_S)


def test_a_contestant_that_hangs_is_given_up(tmp_path: Path) -> None:
    """And ended with all that it started."""
    with start(tmp_path, "hang") as peer:
        peer.wait_until_ready(START_TIMEOUT_S)
        with pytest.raises(PeerError, match="no answer in 0 s"):
            peer.ask(COMMAND, 0.2)
        peer._signal(9)  # A hanging child would use up its whole grace time.
    helper = helper_pid(tmp_path)
    assert becomes(lambda: state(helper) in ("", "Z"))


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(PeerError, match="nowhere/python: No such file"):
        Peer(
            "fake",
            "tests.unit.benchmarks.fake_contestant",
            {},
            log=tmp_path / "log",
            environment=os.environ,
            python=Path("nowhere/python"),
        )

"""A session on a tiny checkpoint: what is loaded, what is left out, and why."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.device.detection import DeviceInfo
from autotune.errors import AutotuneError, ConfigError, TrafficError
from autotune.progress import Silent
from autotune.settings import TuneSettings
from autotune.tuning.session import Session, open_session
from engine.checkpoint.config import read_config
from engine.checkpoint.fingerprint import tokenizer_sha256, weights_fingerprint
from engine.drafters.factory import weight_bytes
from engine.errors import EngineError, WeightsError
from engine.kv_cache import KvCache
from tests.support.checkpoints import A11, CASES, H0, changed_copy
from tests.support.traffic import chat, mixed, prompt, write_traffic

TRAFFIC = Path(__file__).parents[3] / "data" / "traffic"
MIB = 1 << 20


class Opening:
    """Opens sessions on one file of requests and keeps the notes."""

    def __init__(self, folder: Path) -> None:
        self.traffic = write_traffic(folder / "traffic.jsonl", mixed())
        self.progress = Silent()

    @property
    def notes(self) -> list[str]:
        """What the operator was told."""
        return self.progress.notes

    def open(self, **changes: Any) -> Session:
        """Open one; H0, the CPU and float32 unless told otherwise."""
        values: dict[str, Any] = {
            "target": str(H0),
            "traffic": self.traffic,
            "batch_sizes": (1, 2),
            "dtype": "float32",
            "device": "cpu",
        }
        return open_session(TuneSettings.parse(values | changes), self.progress)


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    """Eight requests of two tasks."""
    return Opening(tmp_path)


def test_a_session_holds_everything(opening: Opening) -> None:
    """Model, identity, answers, drafters, and an idle engine of the right size."""
    session = opening.open()

    assert session.target.fingerprint == weights_fingerprint(H0)
    assert session.target.tokenizer_sha256 == tokenizer_sha256(H0)
    assert (session.target.name, session.target.dtype) == (str(H0), "float32")
    assert session.target.num_parameters == 32160
    assert len(session.trajectories) == len(session.workload.requests) == 8
    assert list(session.drafters) == list(session.specs) == ["ngram", "layer-skip-1"]
    assert session.engine.sequences == {}
    assert session.engine.max_len == 64
    assert session.engine.cache.num_slots == 16
    assert opening.notes == []


def test_the_slots_are_as_long_as_the_longest_request(opening: Opening) -> None:
    """Rounded up, but never beyond what the model or the settings allow."""
    write_traffic(opening.traffic, [prompt("x" * 80), prompt("y")])

    assert opening.open().engine.max_len == 128
    assert opening.open(max_len=100).engine.max_len == 100


@pytest.mark.parametrize(
    ("isa", "dtype", "wanted"),
    [
        ((), "auto", "float32"),
        (("avx2", "avx512f"), "auto", "float32"),
        (("avx512_bf16",), "auto", "bfloat16"),
        (("amx_bf16", "avx2"), "auto", "bfloat16"),
        ((), "bfloat16", "bfloat16"),
        (("amx_bf16",), "float32", "float32"),
    ],
)
def test_auto_takes_bfloat16_only_where_it_is_native(
    opening: Opening,
    monkeypatch: pytest.MonkeyPatch,
    isa: tuple[str, ...],
    dtype: str,
    wanted: str,
) -> None:
    """Emulated bfloat16 is slower than float32; an explicit choice is obeyed.

    Without native kernels: these compute in float32, and faster than either.
    """
    use_device(monkeypatch, isa=isa)
    monkeypatch.setattr("engine.kernels.backend.load", lambda: "no C++ compiler")

    session = opening.open(dtype=dtype, ngram=False, layer_skip=())

    assert session.target.dtype == wanted
    assert str(session.engine.target.dtype) == f"torch.{wanted}"


def test_auto_takes_the_native_kernels_first(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the processor multiplies: they are faster."""
    use_device(monkeypatch, isa=("amx_bf16",))

    session = opening.open(dtype="auto", ngram=False, layer_skip=())

    assert (session.target.dtype, session.target.backend) == ("float32", "native")


@pytest.mark.parametrize("backend", ["torch", "onednn", "native"])
def test_the_wanted_kernels_are_used_and_named(opening: Opening, backend: str) -> None:
    """The session tells which kernels its numbers come from."""
    session = opening.open(dtype="float32", backend=backend, ngram=False, layer_skip=())

    assert session.target.backend == session.engine.target.backend == backend


def test_kernels_that_cannot_be_had_are_an_error_or_a_note(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for by name they are refused with the reason; `auto` goes on without and says so."""
    monkeypatch.setattr("engine.kernels.backend.load", lambda: "no C++ compiler; install g++")

    with pytest.raises(EngineError, match=r"backend = native: no C.. compiler; install g"):
        opening.open(dtype="float32", backend="native")
    session = opening.open(dtype="float32", ngram=False, layer_skip=())

    assert session.target.backend == "onednn"
    assert any("no C++ compiler; install g++" in note for note in opening.notes)


def use_device(
    monkeypatch: pytest.MonkeyPatch,
    *,
    isa: tuple[str, ...] = (),
    memory_bytes: int | None = 1 << 30,
) -> None:
    """Pretend to run on another CPU."""
    device = DeviceInfo(kind="cpu", name="Test CPU", memory_bytes=memory_bytes, cores=1, isa=isa)

    class Found:
        chosen = device
        notes = ()

    monkeypatch.setattr("autotune.tuning.session.detect", lambda request: Found)


# ---------------------------------------------------------------- traffic


@pytest.mark.parametrize(
    ("name", "num_requests", "skipped"),
    [
        (
            "G1_sharegpt_odd_rows.jsonl",
            4,
            {
                "empty conversation": 1,
                "no messages, prompt or conversations": 1,
                "no user text": 1,
                "text is not a string": 1,
            },
        ),
        ("G3_bom.jsonl", 2, {}),
        ("G4_null_content_tools.jsonl", 1, {"tools": 1}),
        ("G6_content_parts.jsonl", 2, {"audio": 1, "image": 1, "no user text": 1}),
        ("G8_developer_role.jsonl", 1, {}),
        ("G16_one_huge_line.jsonl.gz", 2, {"line too long": 1}),
        ("G19_invalid_utf8.jsonl", 2, {"not UTF-8": 1}),
        ("G23_secrets.jsonl", 2, {}),
        ("G24_batch_envelope.jsonl", 2, {"other endpoint": 1}),
    ],
)
def test_odd_traffic_files_open(
    opening: Opening, name: str, num_requests: int, skipped: dict[str, int]
) -> None:
    """What can be used is recorded, what cannot is counted by reason."""
    session = opening.open(traffic=TRAFFIC / name)

    assert len(session.trajectories) == num_requests
    assert session.workload.source == f"file:{name}"
    assert session.workload.skipped == skipped
    wanted = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    assert opening.notes == ([f"requests skipped: {wanted}"] if skipped else [])


def test_answers_that_do_not_fit_are_refused_by_number(opening: Opening) -> None:
    """G14 asks for more than this model's context: the counts are in the message."""
    with pytest.raises(TrafficError, match=r"no request can be used.*24 longer than max_len = 256"):
        opening.open(traffic=TRAFFIC / "G14_cut_short.jsonl.gz")


def test_no_text_of_a_request_is_told(
    opening: Opening, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """G23: neither notes nor logs nor output hold a marker, at debug level either."""
    with caplog.at_level(logging.DEBUG):
        session = opening.open(traffic=TRAFFIC / "G23_secrets.jsonl")

    assert "MARKER" not in "\n".join([*opening.notes, caplog.text, *capfd.readouterr()])
    assert "MARKER" not in repr(session.workload)


def test_answers_of_one_token_alone_are_refused(opening: Opening) -> None:
    """A21: with nothing to draft there is nothing to tune, said in one line."""
    write_traffic(opening.traffic, [prompt("abc", max_tokens=1), chat("abc", max_tokens=1)])

    with pytest.raises(TrafficError, match=r"traffic\.jsonl: every answer ends with its first"):
        opening.open()


# ---------------------------------------------------------------- drafters


def test_drafters_that_do_not_fit_are_left_out_with_a_note(
    opening: Opening, tmp_path: Path
) -> None:
    """A11 and a short context are named; the others are built."""
    short = changed_copy(tmp_path / "short", max_position_embeddings=32)

    session = opening.open(
        drafters={"foreign": A11 / "draft", "short": short, "twin": H0, "gone": tmp_path / "gone"},
        layer_skip=(1, 7),
    )

    assert list(session.drafters) == ["ngram", "layer-skip-1", "twin"]
    notes = "\n".join(opening.notes)
    assert "drafter foreign skipped: " in notes
    assert "at id 97: 'e' in the draft, 'a' in the target" in notes
    assert "drafter short skipped: " in notes
    assert "supports 32 positions" in notes
    assert "drafter gone skipped: " in notes
    assert "drafter layer-skip-7 skipped: " in notes
    assert len(opening.notes) == 4


@pytest.mark.parametrize(("num_layers", "depths"), [(2, [1]), (6, [2, 4]), (12, [4, 8]), (1, [])])
def test_layer_skip_depths_follow_the_target(
    opening: Opening, tmp_path: Path, num_layers: int, depths: list[int]
) -> None:
    """A third, two thirds and nearly all, where these are proper parts."""

    def stacked(weights: dict[str, Any]) -> dict[str, Any]:
        first = {name: value for name, value in weights.items() if ".layers.0." in name}
        found = {name: value for name, value in weights.items() if ".layers." not in name}
        for layer in range(num_layers):
            found |= {
                name.replace(".layers.0.", f".layers.{layer}."): value.clone()
                for name, value in first.items()
            }
        return found

    target = changed_copy(tmp_path / "target", stacked, num_hidden_layers=num_layers)

    session = opening.open(target=str(target), ngram=False)

    assert list(session.drafters) == [f"layer-skip-{depth}" for depth in depths]


def test_what_is_switched_off_is_not_built(opening: Opening) -> None:
    """No n-gram, no layers."""
    assert opening.open(ngram=False, layer_skip=()).drafters == {}


# ---------------------------------------------------------------- memory


def needed_bytes(max_len: int = 64, slots: int = 16) -> int:
    """Weights and cache of H0 in float32."""
    config = read_config(H0)
    return weight_bytes(config, torch.float32) + slots * max_len * KvCache.bytes_per_token(
        config, torch.float32
    )


def test_a_target_that_does_not_fit_is_refused(opening: Opening) -> None:
    """What it needs, what there is, and what to do."""
    with pytest.raises(ConfigError) as caught:
        opening.open(memory_bytes=needed_bytes() - 1)

    assert f"needs {needed_bytes() / MIB:.1f} MiB" in str(caught.value)
    assert "lower batch_sizes or max_len, or raise memory_bytes" in str(caught.value)


def test_a_budget_for_the_target_alone_leaves_no_draft(opening: Opening) -> None:
    """B11: the draft's weights and cache count; what needs none is built, nothing dies."""
    session = opening.open(
        memory_bytes=needed_bytes() + 1000, drafters={"twin": H0}, layer_skip=(1,)
    )

    assert list(session.drafters) == ["ngram", "layer-skip-1"]
    (note,) = (note for note in opening.notes if "twin" in note)
    assert note == (
        f"drafter twin skipped: needs {needed_bytes() / MIB:.1f} MiB for weights and "
        "cache, has 0.0 MiB"
    )


def test_drafts_share_what_is_left(opening: Opening) -> None:
    """All drafters are in memory at once, so the second finds less than the first."""
    session = opening.open(
        memory_bytes=3 * needed_bytes() - 1000, drafters={"first": H0, "second": H0}
    )

    assert "first" in session.drafters
    assert "second" not in session.drafters


def test_little_memory_means_fewer_answers(opening: Opening) -> None:
    """The cap is noted, and the workload is what was really used."""
    session = opening.open(memory_bytes=needed_bytes() + 12_000, ngram=False, layer_skip=())

    used = len(session.trajectories)
    assert 2 <= used < 8
    assert len(session.workload.requests) == used
    assert opening.notes == [f"{used} of 8 requests used: memory holds no more answers"]


def test_unknown_memory_asks_for_a_figure(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is guessed; a given figure is taken."""
    use_device(monkeypatch, memory_bytes=None)

    with pytest.raises(ConfigError, match="memory of Test CPU is unknown: set memory_bytes"):
        opening.open()
    assert opening.open(memory_bytes=1 << 30).trajectories


# ---------------------------------------------------------------- what ends the attempt


def test_a_broken_target_ends_the_attempt(opening: Opening) -> None:
    """H1: the missing shard is named."""
    with pytest.raises(WeightsError, match="model-00002-of-00003"):
        opening.open(target=str(CASES / "H1_missing_shard"))


def test_a_missing_file_of_requests_ends_the_attempt(opening: Opening, tmp_path: Path) -> None:
    """One line of our own tree."""
    with pytest.raises(AutotuneError, match=r"none\.jsonl: does not exist"):
        opening.open(traffic=tmp_path / "none.jsonl")

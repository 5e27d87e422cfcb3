"""`spectune export`: what lands on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from autotune.cli import exits
from autotune.document import EnvelopeModel
from engine.checkpoint.fingerprint import weights_fingerprint
from tests.tiny_llama import write_tiny_llama
from tests.unit.autotune.cli import samples
from tests.unit.autotune.cli.conftest import Fill, Run

NGRAM_VALUE = {
    "method": "ngram",
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 15, 0], [16, 16, 0], [17, 64, 0]],
}
LAYER_SKIP_1 = EnvelopeModel(
    drafter="layer-skip-1",
    method="layer_skip",
    max_num_speculative_tokens=2,
    draft_parameters={"num_layers": 1},
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A tiny target of two layers."""
    folder = tmp_path / "target"
    write_tiny_llama(folder, num_layers=2)
    return folder


@pytest.fixture
def layer_skip_store(store_path: Path, target: Path) -> Path:
    """A store that publishes one layer of the tiny target as its draft."""
    with samples.fill(store_path) as repo:
        fingerprint = weights_fingerprint(target)
        samples.publish(repo, LAYER_SKIP_1, target_fingerprint=fingerprint)
    return store_path


def test_stdout_is_the_value_alone(run: Run, fill: Fill) -> None:
    """One line of JSON fit for `$(...)`; what should be known besides goes to stderr."""
    fill()
    result = run("export", "--format", "vllm", "--max-num-seqs", "64")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == NGRAM_VALUE
    assert result.stdout.count("\n") == 1
    assert "note: workload: default." in result.stderr
    assert "start vLLM with --max-num-seqs 64" in result.stderr


def test_json_report(run: Run, fill: Fill) -> None:
    """The same value with its notes in one document."""
    fill()
    found = json.loads(run("export", "--max-num-seqs", "64", "--json").stdout)
    assert found["speculative_config"] == NGRAM_VALUE
    assert found["refused"] == []
    assert found["offered"] is None
    assert found["draft_folder"] is None
    assert any(note.startswith("workload: default") for note in found["notes"])


def test_off_prints_nothing(run: Run, fill: Fill) -> None:
    """Off is the absence of the option, and stderr says so."""
    fill(samples.OFF_ENVELOPE)
    result = run("export")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "start vLLM without --speculative-config" in result.stderr
    assert json.loads(run("export", "--json").stdout)["speculative_config"] is None


def test_refusal(run: Run, fill: Fill) -> None:
    """A draft temperature of 0.7 is refused by name; n-gram is offered with its own figures."""
    fill(samples.SKIP_ENVELOPE)
    result = run("export", "--max-num-seqs", "64")
    assert result.exit_code == exits.REFUSED
    assert result.stdout == ""
    assert "refused: draft_temperature 0.7 (layer-skip-8): vLLM drafts greedily" in result.stderr
    assert "offered instead: ngram, K up to 3" in result.stderr
    assert (
        "offered, batch size 1: K = 3, 1.50x (1.49 to 1.51) over speculation off, provisional"
        in result.stderr
    )
    assert f"to be taken with --offer: {json.dumps(NGRAM_VALUE)}" in result.stderr


def test_offer_is_taken_on_demand(run: Run, fill: Fill) -> None:
    """With --offer the value of the offer is printed, and the refusal still told."""
    fill(samples.SKIP_ENVELOPE)
    result = run("export", "--max-num-seqs", "64", "--offer")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == NGRAM_VALUE
    assert "refused: draft_temperature 0.7" in result.stderr


def test_refusal_as_json(run: Run, fill: Fill) -> None:
    """The report holds the refusal and the offer with its evidence, and the exit code stays 3."""
    fill(samples.SKIP_ENVELOPE)
    result = run("export", "--max-num-seqs", "64", "--json")
    assert result.exit_code == exits.REFUSED
    found = json.loads(result.stdout)
    assert found["speculative_config"] is None
    assert found["offered"]["speculative_config"] == NGRAM_VALUE
    gains = {row["batch_size"]: row["measured"]["gain"] for row in found["offered"]["evidence"]}
    assert gains == pytest.approx({1: 0.5, 16: 0.0})


def test_server_limit_on_k(run: Run, fill: Fill) -> None:
    """A K above the server's limit is refused, and only arms within it are offered."""
    fill()
    result = run("export", "--max-k", "2", "--json")
    assert result.exit_code == exits.REFUSED
    found = json.loads(result.stdout)
    assert "above the server's maximum of 2" in found["refused"][0]
    assert found["offered"]["envelope"]["max_num_speculative_tokens"] <= 2


def test_layer_skip_is_written_as_a_folder(
    run: Run, layer_skip_store: Path, target: Path, tmp_path: Path
) -> None:
    """The value names a folder with the target's first layer; a second export finds it there."""
    out = tmp_path / "out"
    arguments = ("export", "--out-dir", str(out), "--target", str(target))
    result = run(*arguments)
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    folder = Path(value["model"])
    assert (value["method"], folder.parent) == ("draft_model", out)
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        layers = {name.split(".")[2] for name in tensors.keys() if ".layers." in name}
    assert layers == {"0"}
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert run(*arguments).stdout == result.stdout
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_layer_skip_goes_beside_the_store(run: Run, layer_skip_store: Path, target: Path) -> None:
    """Without --out-dir the draft lies beside the store."""
    value = json.loads(run("export", "--target", str(target)).stdout)
    assert Path(value["model"]).parent == layer_skip_store.parent / "drafts"


def test_wrong_target_is_refused(
    run: Run, layer_skip_store: Path, target: Path, tmp_path: Path
) -> None:
    """A draft is cut from the published target alone."""
    write_tiny_llama(tmp_path / "other", num_layers=3)
    result = run("export", "--target", str(tmp_path / "other"))
    assert result.exit_code == exits.BAD_INPUT
    assert "is not" in result.stderr
    assert "name the right one with --target" in result.stderr
    assert not (layer_skip_store.parent / "drafts").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs = 0: must be 1 or more"),
        (["--max-k", "0"], "max_k = 0: must be 1 or more"),
        (["--format", "sglang"], "'sglang' is not 'vllm'"),
    ],
)
def test_bad_input(run: Run, fill: Fill, arguments: list[str], message: str) -> None:
    """Limits out of range and unknown engines are refused in one line."""
    fill()
    result = run("export", *arguments)
    assert result.exit_code == exits.BAD_INPUT
    assert message in result.stderr
    assert result.stdout == ""


def test_nothing_that_was_measured_fits(run: Run, fill: Fill) -> None:
    """Where no measured arm can be expressed, speculation off is offered."""
    fill(samples.SKIP_ENVELOPE)
    found = json.loads(run("export", "--max-k", "1", "--json").stdout)
    assert found["offered"]["evidence"] == []
    assert found["offered"]["envelope"]["drafter"] == "off"

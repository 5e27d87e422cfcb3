"""What we export is what a real vLLM parses: its own validator reads our table as we mean it.

Needs the environment that `deploy/make-vllm-venv.sh` builds (`make vllm-venv`), or the path of
another interpreter with vLLM in SPECTUNED_VLLM_PYTHON. No GPU and no model download.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.render.vllm import render_vllm
from engine.checkpoint.layer_skip_export import write_layer_skip
from tests.documents import NGRAM, SCHEDULE, document, envelope
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("vllm_parses.py")
MAX_NUM_SEQS = 64
NUM_DRAFT_LAYERS = 2
NUM_TARGET_LAYERS = 4

DOCUMENTS = {
    "ngram": document(NGRAM),
    "follows the request": document(envelope("skip", "layer_skip", 4)),
    "greedy": document(envelope("skip", "layer_skip", 4, 0.0)),
}
STARTS_LATE = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "num_speculative_tokens_per_batch_size": [[2, 64, 4]],
}
ABOVE_THE_MAXIMUM = {
    "method": "ngram",
    "num_speculative_tokens": 2,
    "num_speculative_tokens_per_batch_size": [[1, 64, 4]],
}


def vllm_python() -> str:
    """Interpreter with vLLM; a machine without one must say so, not pass."""
    python = os.environ.get("SPECTUNED_VLLM_PYTHON", str(ROOT / ".venv-vllm" / "bin" / "python"))
    if not Path(python).is_file():
        pytest.fail(f"{python}: no such interpreter; run `make vllm-venv` first")
    return python


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny target and the draft folder of its first layers."""
    root = tmp_path_factory.mktemp("vllm")
    write_tiny_llama(root / "target", num_layers=NUM_TARGET_LAYERS)
    write_layer_skip(root / "target", NUM_DRAFT_LAYERS, root / "skip")
    return {"target": root / "target", "skip": root / "skip"}


@pytest.fixture(scope="module")
def outcomes(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What vLLM makes of each exported document and of two tables that we never export."""
    values = {
        name: render_vllm(
            config, max_num_seqs=MAX_NUM_SEQS, draft_folders={"skip": folders["skip"]}
        ).speculative_config
        for name, config in DOCUMENTS.items()
    }
    values |= {"starts late": STARTS_LATE, "above the maximum": ABOVE_THE_MAXIMUM}
    flags = ["--model", str(folders["target"]), "--skip-tokenizer-init"]
    flags += ["--max-num-seqs", str(MAX_NUM_SEQS)]
    commands = [[*flags, "--speculative-config", json.dumps(value)] for value in values.values()]
    out = tmp_path_factory.mktemp("child") / "outcomes.json"
    child = subprocess.run(
        [vllm_python(), str(CHILD), str(out)],
        input=json.dumps(commands),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return dict(zip(values, json.loads(out.read_text()), strict=True))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_vllm_looks_up_the_k_that_was_published(
    outcomes: dict[str, dict[str, Any]], name: str
) -> None:
    """Batch size by batch size, vLLM's own lookup equals the document's rule."""
    config = DOCUMENTS[name]
    expected = [config.num_speculative_tokens(bs) for bs in range(1, MAX_NUM_SEQS + 1)]
    assert outcomes[name]["lookup"] == expected
    assert outcomes[name]["table"] == [[1, 7, 4], [8, 31, 2], [32, 64, 0]]
    assert outcomes[name]["num_speculative_tokens"] == SCHEDULE[0].num_speculative_tokens


def test_vllm_reads_the_ngram_lengths(outcomes: dict[str, dict[str, Any]]) -> None:
    """The lookup lengths arrive, and are not vLLM's own default of 5."""
    parsed = outcomes["ngram"]
    assert parsed["method"] == "ngram"
    assert (parsed["prompt_lookup_min"], parsed["prompt_lookup_max"]) == (2, 4)


@pytest.mark.parametrize(
    ("name", "sampling"), [("follows the request", "probabilistic"), ("greedy", "greedy")]
)
def test_vllm_opens_the_layer_skip_folder(
    outcomes: dict[str, dict[str, Any]], folders: dict[str, Path], name: str, sampling: str
) -> None:
    """VLLM finds a draft model of N layers in the folder and the sampling that was meant."""
    parsed = outcomes[name]
    assert parsed["method"] == "draft_model"
    assert parsed["model"] == str(folders["skip"])
    assert parsed["draft_sample_method"] == sampling
    assert parsed["draft_layers"] == NUM_DRAFT_LAYERS


def test_vllm_refuses_a_table_that_starts_late(outcomes: dict[str, dict[str, Any]]) -> None:
    """The validator these tests rely on does refuse something."""
    assert "must start at 1" in outcomes["starts late"]["error"]


def test_vllm_lowers_a_large_k_silently(outcomes: dict[str, dict[str, Any]]) -> None:
    """Why we refuse a K above the maximum: vLLM takes it and serves another one."""
    assert outcomes["above the maximum"]["lookup"] == [2] * MAX_NUM_SEQS

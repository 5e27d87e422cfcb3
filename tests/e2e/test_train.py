"""`spectune train` from requests to a folder that loads, killed and repeated, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file

from autotune.cli.root import spectune as root
from engine.checkpoint.config import read_config
from engine.checkpoint.eagle3_config import is_eagle3, read_eagle3_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.eagle3.head import Eagle3Head
from engine.training.export import assemble
from engine.training.state import STATE_NAME
from tests.support.service_process import ROOT
from tests.support.traffic import chat, mixed, write_traffic
from tests.support.training import deeper_target

FILES = {
    "README.md",
    "config.json",
    "model.safetensors",
    "training.json",
    "training.png",
    "training.svg",
}


def arguments(folder: Path, method: str, *more: str, budget: str = "3s") -> list[str]:
    """A command line that trains on a handful of requests."""
    target = folder / "target"
    if not target.exists():
        deeper_target(target)
        write_traffic(folder / "train.jsonl", mixed(12))
        asked = [chat(f"held {i}", temperature=float(i % 2)) for i in range(4)]
        write_traffic(folder / "heldout.jsonl", asked)
    given = {
        "--method": method,
        "--target": target,
        "--workload": folder / "train.jsonl",
        "--heldout": folder / "heldout.jsonl",
        "--budget": budget,
        "--out": folder / "out",
    }
    return ["train", *(str(word) for pair in given.items() for word in pair), *more]


def command_of(words: Sequence[str]) -> list[str]:
    """The command line of a process."""
    return [sys.executable, "-m", "autotune.cli", *words]


def spectune(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command_of(words),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_eagle3_head_is_trained_and_loads(tmp_path: Path) -> None:
    """The folder has the public layout, a card and facts; the work folder is gone."""
    result = spectune(arguments(tmp_path, "eagle3", "--draft-vocab", "64", "--json"))

    assert result.returncode == 0, result.stderr
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == FILES
    assert not (tmp_path / "out.work").exists()
    assert is_eagle3(out)
    config = read_eagle3_config(out)
    assert (config.draft_vocab_size, config.feature_layers) == (64, (0, 2, 3))
    weights = load_file(out / "model.safetensors")
    head = Eagle3Head(config)
    head.load_state_dict(weights)
    assert int(head.t2d.sum()) == 64
    facts = json.loads((out / "training.json").read_text())
    assert json.loads(result.stdout) == facts
    assert facts["steps"] > 0
    assert {row["temperature"] for row in facts["acceptance"]} == {0.0, 1.0}


def test_a_pruned_draft_is_trained_and_assembled(tmp_path: Path) -> None:
    """Stored are its layers and norm alone; with the target's parts it is a whole model."""
    result = spectune(arguments(tmp_path, "layer-pruned", "--layers", "2", "--keep-work"))

    assert result.returncode == 0, result.stderr
    assert "Tokens per round on held-out answers" in result.stdout
    out, whole = tmp_path / "out", tmp_path / "whole"
    stored = load_file(out / "model.safetensors")
    assert {name.split(".")[1] for name in stored} == {"layers", "norm"}
    assemble(out, tmp_path / "target", whole)
    config = read_config(whole)
    assert config.num_layers == 2
    weights = read_weights(whole, config)
    lent = load_file(tmp_path / "target" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(weights[name], lent[name])
    assert (whole / "tokenizer.json").is_file()
    assert (tmp_path / "out.work" / "corpus").is_dir()


def test_a_kept_corpus_is_learned_from_again(tmp_path: Path) -> None:
    """With --corpus nothing is answered for training; the corpus knows where it came from."""
    assert spectune(arguments(tmp_path, "eagle3", "--keep-work")).returncode == 0
    first = json.loads((tmp_path / "out" / "training.json").read_text())
    corpus = tmp_path / "corpus"
    (tmp_path / "out.work" / "corpus").rename(corpus)
    again = arguments(tmp_path, "layer-pruned", "--corpus", str(corpus), budget="1s")
    again[again.index("--out") + 1] = str(tmp_path / "second")

    result = spectune(again)

    assert result.returncode == 0, result.stderr
    second = json.loads((tmp_path / "second" / "training.json").read_text())
    assert second["data"] == first["data"]
    assert second["prompts_sha256"] == first["prompts_sha256"] is not None
    assert corpus.is_dir()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """SIGKILL in training: answers and history are kept, steps are counted on."""
    words = arguments(tmp_path, "eagle3", budget="10s")
    process = subprocess.Popen(
        command_of(words), cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    state = tmp_path / "out.work" / STATE_NAME
    while not state.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = saved_state(state)
    assert not before["finished"]
    assert not (tmp_path / "out").exists()

    refused = spectune([*words, "--seed", "5"])
    assert refused.returncode == 2
    assert "holds an unfinished run with seed = 0, not 5" in refused.stderr
    result = spectune(words)

    assert result.returncode == 0, result.stderr
    facts = json.loads((tmp_path / "out" / "training.json").read_text())
    kept = before["history"]
    assert facts["curve"][: len(kept)] == kept
    assert facts["steps"] > before["step"]
    assert not (tmp_path / "out.work").exists()


def saved_state(path: Path) -> dict[str, object]:
    """The position in a state file."""
    with safe_open(path, framework="pt") as file:
        found: dict[str, object] = json.loads(file.metadata()["state"])
    return found


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C: its exit code, and where what was done is kept."""
    process = subprocess.Popen(
        command_of(arguments(tmp_path, "eagle3", budget="1h")),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    work = tmp_path / "out.work"
    while not (work / "heldout").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert f"{work} keeps what was done: repeat the command to go on" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--budget", "soon"], "budget = 'soon': must be a number and a unit"),
        (["--learning-rate", "-1"], "learning_rate = -1.0: Input should be greater than 0"),
        (["--draft-vocab", "0"], "draft_vocab_size = 0: Input should be greater than"),
        (["--layers", "4", "--method", "layer-pruned"], "num_layers = 4: the target has 4 layers"),
        (["--target", "nowhere"], "model 'nowhere': no such folder"),
        (["--method", "medusa"], "'medusa' is not one of"),
    ],
)
def test_wrong_arguments(tmp_path: Path, more: list[str], told: str) -> None:
    """One line with the key, its value and what is allowed; nothing is written."""
    result = CliRunner().invoke(root, arguments(tmp_path, "eagle3", *more))

    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.splitlines()[-1].startswith("spectune")
    assert not (tmp_path / "out.work").exists()
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """Before any work."""
    words = arguments(tmp_path, "eagle3")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")

    result = CliRunner().invoke(root, words)

    assert result.exit_code == 2
    assert "exists and is not an empty folder" in result.stderr
    assert not (tmp_path / "out.work").exists()

"""`spectune replay --logs`: answers of the engine, logged as by a server, give its own figures."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.device.detection import detect
from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.factory import DrafterSpec, build_drafter, ngram
from engine.drafters.profiling import profile
from engine.engine import Engine
from engine.kernels.backend import fastest_dtype
from engine.model import Transformer
from engine.record import Trajectory, record
from engine.replay import Replay, replay
from engine.request import Request
from engine.sampling import SamplingParams
from policies.types import VerificationRule
from tests.support.checkpoints import H0, changed_copy, disturbed
from tests.support.server_log import completion_line, flat_line, write_log
from tests.support.service_process import ROOT

K_MAX = 5
MAX_LEN = 96
SAMPLINGS = {"greedy": (0.0, 1.0, 0), "plain": (1.0, 1.0, 0), "cut": (0.7, 0.9, 20)}


@cache
def engine() -> Engine:
    """The target, with the arithmetic that the command chooses."""
    device = detect("cpu").chosen
    config = read_config(H0)
    model = Transformer.from_weights(
        config,
        read_weights(H0, config),
        dtype=fastest_dtype(multiplies_bfloat16=device.multiplies_bfloat16),
        max_len=MAX_LEN,
    )
    return Engine(model, eos_token_ids=(258, 97, 98), max_batch_size=12, max_len=MAX_LEN)


@cache
def recorded() -> tuple[Trajectory, ...]:
    """Answers of three kinds of sampling; some end early, by one of several end tokens."""
    requests = [
        Request(
            request_id=f"{name} {i}",
            prompt_tokens=tuple(b"the cat sat on the mat, the cat sat"[i:]),
            task=name,
            params=SamplingParams(
                temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=30 + i, seed=i
            ),
        )
        for i in range(8)
        for name, (temperature, top_p, top_k) in SAMPLINGS.items()
    ]
    return tuple(record(engine(), requests, batch_size=12))


def in_engine(spec: DrafterSpec, rule: VerificationRule, temperature: float | None) -> list[Replay]:
    """What the engine's own replay finds, for every K."""
    drafter = build_drafter(spec, engine(), H0)
    profiles = [
        profile(drafter, answer, [temperature], max_drafts=K_MAX, max_len=MAX_LEN)[0][0]
        for answer in recorded()
    ]
    return [replay(profiles, k, rule) for k in range(1, K_MAX + 1)]


def spectune(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "autotune.cli", "replay", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def found(*words: str) -> dict[str, Any]:
    """The JSON of a run that succeeds."""
    ended = spectune(*words, "--max-k", str(K_MAX), "--device", "cpu", "--json")
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def same(row: dict[str, Any], counts: Replay) -> None:
    """Every figure of a row, to the last bit but those that a sum's order decides."""
    assert row["num_output_tokens"] == int(counts.num_tokens.sum())
    assert row["num_rounds"] == pytest.approx(float(counts.num_rounds.sum()), rel=1e-12)
    assert row["tokens_per_round"] == pytest.approx(counts.tokens_per_round, rel=1e-12)
    assert row["tokens_per_round_std_error"] == pytest.approx(
        counts.tokens_per_round_std_error, rel=1e-9
    )
    assert row["num_accepted_tokens_per_pos"] == pytest.approx(
        counts.num_accepted_per_pos.sum(dim=0).tolist(), rel=1e-12
    )
    drafts = torch.arange(counts.num_rounds_by_drafts.shape[1], dtype=torch.float64)
    assert row["num_draft_tokens"] == pytest.approx(
        float((counts.num_rounds_by_drafts.sum(dim=0) * drafts).sum()), rel=1e-12
    )


def compare(report: dict[str, Any], rule: str, wanted: list[Replay]) -> None:
    """Figures over all answers and over each task, for every K."""
    sizes = [row for row in report["sizes"] if row["rule"] == rule]
    assert [row["num_speculative_tokens"] for row in sizes] == list(range(1, K_MAX + 1))
    for row, counts in zip(sizes, wanted, strict=True):
        same(row, counts)
    tasks = [answer.request.task for answer in recorded()]
    groups = [row for row in report["groups"] if row["rule"] == rule]
    assert len(groups) == len(SAMPLINGS) * K_MAX
    for row in groups:
        rows = [index for index, task in enumerate(tasks) if task == row["task"]]
        assert row["temperature"] == SAMPLINGS[row["task"]][0]
        same(row, wanted[row["num_speculative_tokens"] - 1].select(rows))


def test_ngram_from_the_log_is_ngram_in_the_engine(tmp_path: Path) -> None:
    """Without any model; half of the lines in one form, half in the other."""
    rows = [
        completion_line(answer) if i % 2 else flat_line(answer)
        for i, answer in enumerate(recorded())
    ]
    log = write_log(tmp_path / "log.jsonl", rows)

    report = found("--logs", str(log), "--drafter", "ngram", "--logprobs", "processed")

    assert report["num_answers"] == len(recorded())
    assert report["source"] == "file:log.jsonl"
    assert {row["rule"] for row in report["sizes"]} == {"delta"}
    compare(report, "delta", in_engine(ngram(), VerificationRule.RATIO, None))
    assert report["sizes"][-1]["tokens_per_round"] > 1


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("named", [True, False], ids=["target named", "ids alone"])
def test_a_draft_model_from_the_log_is_the_one_in_the_engine(
    tmp_path: Path, temperature: float | None, named: bool
) -> None:
    """By both rules, packed log, with and without the target's tokenizer."""
    draft = changed_copy(tmp_path / "draft", disturbed)
    lines = "".join(json.dumps(completion_line(answer)) + "\n" for answer in recorded())
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(lines.encode()))
    words = ["--logs", str(log), "--drafter", f"mine={draft}", "--logprobs", "processed"]
    words += ["--target", str(H0)] if named else []
    words += [] if temperature is None else ["--draft-temperature", str(temperature)]

    report = found(*words)

    assert report["drafter"] == "mine"
    spec = DrafterSpec(name="mine", method="draft_model", folder=draft)
    for rule in VerificationRule:
        compare(report, rule.value, in_engine(spec, rule, temperature))
    ratio, block = (
        [row["tokens_per_round"] for row in report["sizes"] if row["rule"] == rule]
        for rule in ("ratio", "block")
    )
    assert ratio[0] == block[0]
    assert all(a < b for a, b in zip(ratio[1:], block[1:], strict=True))


def test_tables_for_people(tmp_path: Path) -> None:
    """Tokens per round with intervals for every K, acceptance by position, progress on stderr."""
    log = write_log(tmp_path / "log.jsonl", [completion_line(answer) for answer in recorded()])

    ended = spectune(
        *("--logs", str(log), "--drafter", str(changed_copy(tmp_path / "draft", disturbed))),
        *("--logprobs", "processed", "--max-k", "3", "--rule", "block", "--device", "cpu"),
    )

    assert ended.returncode == 0, ended.stderr
    assert "Tokens per round (draft, 24 answers of file:log.jsonl)" in ended.stdout
    assert "block rule\n" in ended.stdout or "block rule " in ended.stdout
    assert "Acceptance (draft K=3, block rule, file:log.jsonl)" in ended.stdout
    assert "pos 3" in ended.stdout
    assert "Replay" in ended.stderr
    assert "the vocabulary of draft is taken to be that of the log" in ended.stderr

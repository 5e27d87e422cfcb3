"""Runs a drafter in a real vLLM, in a process and a virtual environment of its own."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.service.supervisor import Child, run_child

_SCRIPT = Path(__file__).with_name("vllm_acceptance.py")
_ENVIRONMENT = {
    # Everything in one process, which uses all threads; otherwise one core only polls.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    # n-gram lookup makes every operation wait for a second thread; spinning for it takes 10 ms
    # whenever another process has that core.
    "OMP_WAIT_POLICY": "passive",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_GRACE_S = 5.0
_TAIL_LINES = 3


class VllmError(RuntimeError):
    """The vLLM process gave no counts; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRequest:
    """One request.

    Attributes:
        prompt_tokens: With `max_tokens` and K at most 1024, or its last rounds have fewer drafts.
        temperature: 0 for greedy.
    """

    prompt_tokens: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmJob:
    """What vLLM is to run.

    Attributes:
        model: Folder of the target.
        drafter: `speculative_config` of vLLM: "method", and what the method needs.
        num_speculative_tokens: K.
        requests: Those of one temperature run together, eight at a time.
        max_tokens: Length at which answers are cut.
        dtype: Of the weights and of the computation.
        timeout_s: Seconds for everything, start-up included.
    """

    model: Path
    drafter: Mapping[str, str | int]
    num_speculative_tokens: int
    requests: tuple[VllmRequest, ...]
    max_tokens: int
    dtype: str = "float32"
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmAnswer:
    """One answer.

    Attributes:
        output_tokens: Its tokens, the end token included; the first came from the prompt alone.
        cut: It has all the tokens that were allowed.
        num_accepted: For each round that verified drafts, how many were accepted, those beyond
            the end of the answer included.
    """

    output_tokens: tuple[int, ...]
    cut: bool
    num_accepted: tuple[int, ...]

    def num_accepted_inside(self) -> tuple[int, ...]:
        """As `num_accepted`, without what is beyond the end.

        A round that can only emit the last token allowed is left out: our engine does not draft
        there. Exact where every round drafts; with n-gram lookup it is `num_accepted` unless the
        rounds alone exceed the answer.
        """
        emitted = 1 + sum(count + 1 for count in self.num_accepted)
        beyond = emitted - len(self.output_tokens)
        if not self.num_accepted or beyond < 0:
            return self.num_accepted
        last = self.num_accepted[-1]
        left = last + 1 - beyond
        # The last token of a cut answer is never drafted here: the round would have no use for
        # the token after it. An end token may well be.
        useful = left - 1 if self.cut else left
        kept = min(last, useful)
        if self.cut and useful == 0:
            return self.num_accepted[:-1]
        return (*self.num_accepted[:-1], kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCounts:
    """VLLM's counters over the answers of one temperature, and the answers.

    VLLM counts every round of a request that verified at least one draft, the last included, and
    in it all K drafts: an answer that ends within a round does not shorten it, so drafts accepted
    beyond the end are in the counters. Rounds in which n-gram lookup found nothing are not. Every
    position has the same denominator, `num_drafts`; the rates need it to be above 0.

    Attributes:
        temperature: Of the requests.
        num_drafts: Rounds with drafts.
        num_draft_tokens: Their drafts, K a round but for n-gram lookup.
        num_accepted_tokens: Accepted drafts.
        num_accepted_tokens_per_pos: [K] the same by position.
        seconds: For all of them, without start-up.
        answers: In the order of the requests.
    """

    temperature: float
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    seconds: float
    answers: tuple[VllmAnswer, ...]

    @property
    def num_emitted_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.output_tokens) for answer in self.answers)

    @property
    def accepted_per_pos(self) -> tuple[float, ...]:
        """[K] vLLM's own rate: accepted at each position per round that drafted."""
        return tuple(count / self.num_drafts for count in self.num_accepted_tokens_per_pos)

    @property
    def accepted_per_pos_inside(self) -> tuple[float, ...]:
        """[K] the rate that `engine.replay` predicts.

        Its counterpart is `num_accepted_per_pos` over the rounds with at least one draft,
        `num_rounds_by_drafts[:, 1:]`, both summed over the answers.
        """
        rounds = [count for answer in self.answers for count in answer.num_accepted_inside()]
        positions = range(len(self.num_accepted_tokens_per_pos))
        return tuple(
            sum(count > position for count in rounds) / len(rounds) for position in positions
        )


def run_vllm(python: Path, job: VllmJob, scratch: Path) -> list[VllmCounts]:
    """Run a job in vLLM.

    Args:
        python: Interpreter that has vllm-cpu 0.32; see `deploy/make-vllm-venv.sh`.
        job: What to run.
        scratch: Existing folder for the job and its result.

    Returns:
        One for each temperature, ascending.

    Raises:
        VllmError: vLLM cannot be started, fails, or takes too long. Nothing of it is left running.
    """
    asked, answered = scratch / "vllm_job.json", scratch / "vllm_counts.json"
    answered.unlink(missing_ok=True)
    asked.write_text(json.dumps(_to_json(job)), encoding="utf-8")
    tail: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def keep(line: bytes) -> None:
        if line.strip():
            tail.append(line)

    child = Child(
        command=(str(python), str(_SCRIPT), str(asked), str(answered)),
        stdin=b"",
        timeout_s=job.timeout_s,
        grace_s=_GRACE_S,
        environment={**os.environ, **_ENVIRONMENT},
    )
    try:
        end = run_child(
            child,
            threading.Event(),
            on_start=lambda pid: None,
            on_stdout=lambda line: None,
            on_stderr=keep,
        )
    except OSError as error:
        raise VllmError(f"{python}: {error.strerror}; run `make vllm-venv` first") from error
    if end.cause == "timeout":
        raise VllmError(f"vLLM took more than {job.timeout_s:g} s: {_in_one_line(tail)}")
    if end.exit_code != 0 or not answered.is_file():
        raise VllmError(f"vLLM failed ({end.describe()}): {_in_one_line(tail)}")
    return [_to_counts(found) for found in json.loads(answered.read_text(encoding="utf-8"))]


def _in_one_line(lines: deque[bytes]) -> str:
    return " | ".join(line.decode(errors="replace").strip() for line in lines)


def _to_json(job: VllmJob) -> dict[str, Any]:
    return {
        "model": str(job.model),
        "dtype": job.dtype,
        "k": job.num_speculative_tokens,
        "max_tokens": job.max_tokens,
        "drafter": dict(job.drafter),
        "requests": [
            {"prompt_token_ids": list(asked.prompt_tokens), "temperature": asked.temperature}
            for asked in job.requests
        ],
    }


def _to_counts(found: dict[str, Any]) -> VllmCounts:
    return VllmCounts(
        temperature=found["temperature"],
        num_drafts=found["num_drafts"],
        num_draft_tokens=found["num_draft_tokens"],
        num_accepted_tokens=found["num_accepted_tokens"],
        num_accepted_tokens_per_pos=tuple(found["num_accepted_tokens_per_pos"]),
        seconds=found["seconds"],
        answers=tuple(
            VllmAnswer(
                output_tokens=tuple(answer["output_token_ids"]),
                cut=answer["cut"],
                num_accepted=tuple(answer["num_accepted"]),
            )
            for answer in found["answers"]
        ),
    )

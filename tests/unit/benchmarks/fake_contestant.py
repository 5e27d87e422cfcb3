"""A contestant without a model, for test_peers: repeats the first token of the prompt."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.speed_child import BatchTimes, RunBatch, serve


def open_model(description: dict[str, Any]) -> RunBatch:
    """Behave as described, with a helper process as vLLM has one."""
    if description["behaviour"] == "fail":
        raise FileNotFoundError("no such model")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(description["helper"]).write_text(str(helper.pid), encoding="ascii")

    def run_batch(prompts: list[list[int]], max_tokens: int, num_drafts: int) -> BatchTimes:
        if description["behaviour"] == "hang":
            time.sleep(600)
        outputs = [[prompt[0]] * max_tokens for prompt in prompts]
        return BatchTimes(0.0, 1.0, 2.0, len(prompts), outputs)

    return run_batch


if __name__ == "__main__":
    serve(open_model)

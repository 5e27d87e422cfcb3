"""Logs of servers: the engine's own answers in the words of OpenAI-style responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.record import Trajectory


def completion_line(answer: Trajectory) -> dict[str, Any]:
    """Request and response of a completions endpoint, as vLLM with `return_token_ids`."""
    params = answer.request.params
    first = -0.5  # comes from prefill, and is not looked at
    return {
        "request": {
            "model": "served",
            "prompt": list(answer.request.prompt_tokens),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "max_tokens": params.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
            "metadata": {"task": answer.request.task},
        },
        "response": {
            "object": "text_completion",
            "choices": [
                {
                    "index": 0,
                    "text": "not looked at",
                    "token_ids": list(answer.output_tokens),
                    "prompt_token_ids": list(answer.request.prompt_tokens),
                    "logprobs": {
                        "token_logprobs": [first, *answer.log_probs],
                        "tokens": ["?"] * len(answer.output_tokens),
                    },
                    "finish_reason": answer.finish_reason.value,
                }
            ],
        },
    }


def flat_line(answer: Trajectory) -> dict[str, Any]:
    """The same as one plain object."""
    params = answer.request.params
    return {
        "prompt_token_ids": list(answer.request.prompt_tokens),
        "token_ids": list(answer.output_tokens),
        "logprobs": [-0.5, *answer.log_probs],
        "finish_reason": answer.finish_reason.value,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "max_tokens": params.max_tokens,
        "metadata": {"task": answer.request.task},
    }


def chat_line(messages: list[dict[str, str]], text: str, **values: Any) -> dict[str, Any]:
    """A chat answer as text, one character per token, inside batch envelopes.

    Args:
        messages: The conversation.
        text: The answer, of single bytes.
        values: Further keys of the request's body, and of the choice where they belong there.
    """
    choice = {"finish_reason": values.pop("finish_reason", "stop")}
    log_probs = values.pop("log_probs", [-0.25] * (len(text) + 1))
    tokens = values.pop("tokens", [*text, ""])
    content = [{"token": t, "logprob": p} for t, p in zip(tokens, log_probs, strict=True)]
    choice |= {
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content},
    }
    return {
        "custom_id": "a",
        "url": "/v1/chat/completions",
        "body": {"messages": messages, "temperature": 1.0, "logprobs": True} | values,
        "response": {"status_code": 200, "body": {"choices": [choice]}},
    }


def write_log(path: Path, rows: Iterable[Mapping[str, Any] | str]) -> Path:
    """One row per line; texts as they are."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path

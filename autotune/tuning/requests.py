"""From a workload to requests of the engine: tokenised, checked against the model, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import TrafficError
from autotune.progress import Progress
from autotune.traffic.records import SampledRequest
from autotune.traffic.workload import Workload, fingerprint
from autotune.tuning.seeds import derive_seed
from engine.errors import RequestError
from engine.request import Request
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSet:
    """A workload in the words of one model.

    Attributes:
        workload: The requests in use.
        requests: The same, tokenised and in the same order.
    """

    workload: Workload
    requests: tuple[Request, ...]

    @property
    def longest(self) -> int:
        """Most tokens that prompt and answer of one request may have."""
        return max(len(r.prompt_tokens) + r.params.max_tokens for r in self.requests)

    def fit(self, room_bytes: float, bytes_per_token: int, seed: int) -> RequestSet:
        """A fair sample, as large as the keys and values of its answers have room.

        Args:
            room_bytes: Memory for keys and values.
            bytes_per_token: What one token takes.
            seed: Seed of the sample.

        Returns:
            At least two requests, where there are two.
        """
        by_id = {
            sampled.request_id: request
            for sampled, request in zip(self.workload.requests, self.requests, strict=True)
        }
        fitted, room = self, room_bytes / bytes_per_token
        while len(fitted.requests) > 2 and fitted._num_tokens > room:
            count = int(len(fitted.requests) * room / fitted._num_tokens)
            sample = self.workload.sample(max(2, count), seed)
            fitted = RequestSet(
                workload=sample,
                requests=tuple(by_id[sampled.request_id] for sampled in sample.requests),
            )
        return fitted

    @property
    def _num_tokens(self) -> int:
        return sum(len(r.prompt_tokens) + r.params.max_tokens for r in self.requests)


def to_requests(
    workload: Workload,
    tokenizer: Tokenizer,
    progress: Progress,
    *,
    num_requests: int,
    seed: int,
    max_len: int,
    vocab_size: int,
) -> RequestSet:
    """Take a fair sample of the requests that the model can take; the others are counted.

    Args:
        workload: What to sample from.
        tokenizer: The target's.
        progress: Told what was skipped, and why.
        num_requests: Requests to sample.
        seed: Seed of the sample and of every request's own seed.
        max_len: Most tokens of prompt and answer.
        vocab_size: Rows of the target's embedding.

    Raises:
        TrafficError: No request can be used.
        TokenizerError: There are conversations, and no usable chat template.
    """
    skipped = Counter(workload.skipped)
    usable: dict[int, list[int]] = {}
    kept: list[SampledRequest] = []
    for sampled in workload.requests:
        try:
            tokens = _prompt_tokens(sampled, tokenizer)
        except RequestError:  # Its text may quote the request.
            skipped["refused by the chat template"] += 1
            continue
        stops = [tokenizer.encode(stop) for stop in sampled.stop]
        if reason := _unusable(tokens, stops, sampled.max_tokens, max_len, vocab_size):
            skipped[reason] += 1
            continue
        kept.append(sampled)
        usable[id(sampled)] = tokens
    if skipped:
        progress.note(f"requests skipped: {_counts(skipped)}")
    if workload.cut_short:
        progress.note(f"{workload.source} ends in the middle of a record: it was cut short")
    if not kept:
        raise TrafficError(
            f"{workload.source}: no request can be used with this model ({_counts(skipped)})"
        )
    whole = replace(
        workload, requests=tuple(kept), fingerprint=fingerprint(kept), skipped=dict(skipped)
    )
    sample = whole.sample(num_requests, seed)
    requests = [
        Request(
            request_id=f"{index}",
            prompt_tokens=tuple(usable[id(sampled)]),
            task=sampled.task,
            params=SamplingParams(
                temperature=sampled.temperature,
                top_p=sampled.top_p,
                top_k=sampled.top_k,
                max_tokens=sampled.max_tokens,
                seed=derive_seed(seed, "request", index, sampled.seed),
                stop_token_ids=frozenset(tokenizer.encode(stop)[0] for stop in sampled.stop),
            ),
        )
        for index, sampled in enumerate(sample.requests)
    ]
    return RequestSet(workload=sample, requests=tuple(requests))


def _prompt_tokens(sampled: SampledRequest, tokenizer: Tokenizer) -> list[int]:
    if sampled.prompt is not None:
        return tokenizer.encode(sampled.prompt, add_special_tokens=True)
    messages = [{"role": m.role, "content": m.content} for m in sampled.messages]
    return tokenizer.encode(tokenizer.render_chat(messages))


def _unusable(
    tokens: list[int], stops: list[list[int]], max_tokens: int, max_len: int, vocab_size: int
) -> str | None:
    """Why the engine cannot answer a request as a server would; None where it can."""
    if any(len(stop) != 1 for stop in stops):
        return "stop string of more than one token"
    if not tokens:
        return "empty prompt"
    if max(tokens) >= vocab_size:
        return "token outside the model's vocabulary"
    if len(tokens) + max_tokens > max_len:
        return f"longer than max_len = {max_len} tokens"
    return None


def _counts(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))

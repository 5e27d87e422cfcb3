"""From a log to the answers that replay can use, with a count of those it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.errors import ConfigError, TrafficError
from autotune.replay_logs.settings import LogProbs
from autotune.replay_logs.tokens import TokenIds, token_ids
from autotune.traffic.logged import LoggedAnswer, parse_answer
from autotune.traffic.reasons import SkipCounts, Skipped, SkipReason
from autotune.traffic.rows import read_rows
from engine.record import Trajectory, logged_trajectory
from engine.request import FinishReason, Request
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer

_MAX_LINE_BYTES = 64 << 20  # alternatives beside every token make long lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a file gave.

    Attributes:
        path: The file.
        answers: In file order.
        skipped: Lines that were not used; later steps add to it.
        cut_short: The file ends inside a line or an archive.
    """

    path: Path
    answers: tuple[LoggedAnswer, ...]
    skipped: SkipCounts
    cut_short: bool

    def nothing_usable(self) -> TrafficError:
        """The error with its remedy."""
        counts = self.skipped.describe()
        found = f"no usable answer (skipped: {counts})" if counts else "no answers in it"
        cut = ", and the file is cut short" if self.cut_short else ""
        return TrafficError(
            f"{self.path}: {found}{cut}; give one request with its response per line, with output "
            'token ids or text and log-probabilities (vLLM: "logprobs" and "return_token_ids")'
        )


def read_log(path: Path, *, limit: int, needs_log_probs: bool) -> Log:
    """Reads a log.

    Args:
        path: Plain or gzip JSON lines, as `autotune.traffic.logged` describes them.
        limit: Answers to take, at most.
        needs_log_probs: As in `parse_answer`.

    Raises:
        TrafficError: The file cannot be read.
    """
    rows = read_rows(
        path,
        partial(parse_answer, needs_log_probs=needs_log_probs),
        max_line_bytes=_MAX_LINE_BYTES,
        limit=limit,
    )
    return Log(path=path, answers=rows.used, skipped=rows.skipped, cut_short=rows.cut_short)


def require_known_log_probs(log: Log, log_probs: LogProbs | None) -> None:
    """Ask what the log-probabilities are, where that makes a difference.

    Replay divides by the probability that a token was drawn with, which is that after
    temperature, top-k and top-p. Before them it is another one, and what lies between, a sum over
    the vocabulary, is in no log.

    Raises:
        ConfigError: It makes a difference, and nobody said.
    """
    processed = [a for a in log.answers if a.log_probs is not None and a.is_processed]
    if processed and log_probs is None:
        raise ConfigError(
            f"logprobs: {len(processed)} of {len(log.answers)} answers (the first is line "
            f"{processed[0].line}) have a temperature other than 0 and 1, top-k or top-p; say "
            "--logprobs processed if the log's log-probabilities were taken after these (vLLM: "
            "--logprobs-mode processed_logprobs), or --logprobs raw if before (vLLM's default), "
            "which leaves such answers out"
        )


def require_tokenizer(log: Log, target: str | None) -> None:
    """Ask for the target where there is text to split.

    Raises:
        ConfigError: There is, and no target is named.
    """
    text = next((answer for answer in log.answers if answer.needs_tokenizer), None)
    if text is not None and target is None:
        raise ConfigError(
            f"target: line {text.line} of {log.path} holds text in place of token ids; name the "
            "model that answered with --target, for its tokenizer and chat template"
        )


def to_trajectories(
    log: Log,
    tokenizer: Tokenizer | None,
    *,
    log_probs: LogProbs | None,
    max_drafts: int,
    longest: int | None,
) -> tuple[Trajectory, ...]:
    """The usable answers as replay wants them; the others are added to the log's counts.

    Args:
        log: The log.
        tokenizer: The target's, or None where all is token ids.
        log_probs: What the log's log-probabilities are.
        max_drafts: K_max.
        longest: Tokens of the longest text that the drafter takes, or None.

    Raises:
        TrafficError: No answer has a decode round to replay.
        TokenizerError: There are conversations, and no usable chat template.
    """
    vocab_size = None if tokenizer is None else tokenizer.vocab_size
    found = []
    for answer in log.answers:
        try:
            if answer.log_probs is not None and answer.is_processed and log_probs == "raw":
                raise Skipped(SkipReason.RAW_LOG_PROBS)
            ids = token_ids(answer, tokenizer)
            _check(ids, answer, vocab_size=vocab_size, longest=longest)
        except Skipped as skip:
            log.skipped.add(skip.reason, answer.line)
            continue
        found.append(_trajectory(answer, ids, max_drafts))
    if not any(trajectory.num_decoded for trajectory in found):
        if found:
            raise TrafficError(
                f"{log.path}: every answer ends with its first token, so no drafter can help"
            )
        raise log.nothing_usable()
    return tuple(found)


def num_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of the longest prompt and answer."""
    return max(len(t.request.prompt_tokens) + len(t.output_tokens) for t in trajectories)


def highest_token(trajectories: Sequence[Trajectory]) -> int:
    """The highest id in use."""
    return max(max(*t.request.prompt_tokens, *t.output_tokens) for t in trajectories)


def _check(
    ids: TokenIds, answer: LoggedAnswer, *, vocab_size: int | None, longest: int | None
) -> None:
    limit = answer.settings.max_tokens
    if limit is not None and len(ids.output) > limit:
        raise Skipped(SkipReason.TOO_MANY_TOKENS)
    if vocab_size is not None and max(*ids.prompt, *ids.output) >= vocab_size:
        raise Skipped(SkipReason.VOCABULARY)
    # The last token is never looked back on.
    if longest is not None and len(ids.prompt) + len(ids.output) - 1 > longest:
        raise Skipped(SkipReason.BEYOND_DRAFT)


def _trajectory(answer: LoggedAnswer, ids: TokenIds, max_drafts: int) -> Trajectory:
    settings, count = answer.settings, len(ids.output)
    limit = settings.max_tokens
    if limit is None:
        # Without one that is known, nothing shortens the drafts of the last rounds.
        limit = count if answer.finish_reason == "length" else count + max_drafts
    request = Request(
        request_id=f"line-{answer.line}",
        prompt_tokens=ids.prompt,
        task=settings.task,
        params=SamplingParams(
            temperature=answer.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=limit,
        ),
    )
    by_length = answer.finish_reason == "length"
    return logged_trajectory(
        request,
        ids.output,
        (0.0,) * (count - 1) if answer.log_probs is None else answer.log_probs[1:],
        FinishReason.LENGTH if by_length else FinishReason.STOP,
    )

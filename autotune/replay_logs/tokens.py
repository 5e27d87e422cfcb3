"""From what a server logged to token ids: taken as they are, or split from text and checked."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.traffic.logged import LoggedAnswer
from autotune.traffic.reasons import Skipped, SkipReason
from engine.errors import RequestError
from engine.tokenizer import Tokenizer

_PART_OF_A_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Prompt and answer."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def token_ids(answer: LoggedAnswer, tokenizer: Tokenizer | None) -> TokenIds:
    """Token ids of a logged answer.

    Args:
        answer: The answer.
        tokenizer: The target's; only an answer that `needs_tokenizer` must have it.

    Raises:
        Skipped: Its text cannot be split as it was when it was generated.
        TokenizerError: There is no usable chat template.
    """
    prompt, output = answer.prompt_token_ids, answer.output_token_ids
    if tokenizer is not None:
        prompt = prompt or _prompt_ids(answer, tokenizer)
        output = output or _output_ids(answer, tokenizer)
    assert prompt is not None
    assert output is not None
    return TokenIds(prompt, output)


def _prompt_ids(answer: LoggedAnswer, tokenizer: Tokenizer) -> tuple[int, ...]:
    try:
        if isinstance(answer.prompt, str):
            ids = tokenizer.encode(answer.prompt, add_special_tokens=True)
        else:
            turns = [{"role": m.role, "content": m.content} for m in answer.prompt or ()]
            ids = tokenizer.encode(tokenizer.render_chat(turns))
    except RequestError:  # its text may quote the request
        raise Skipped(SkipReason.TEMPLATE) from None
    if not ids:
        raise Skipped(SkipReason.NO_USER_TEXT)
    return tuple(ids)


def _output_ids(answer: LoggedAnswer, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The answer's text, split, with the end token that texts leave out.

    Text is split anew, so it may come out otherwise than it was generated. As many tokens as
    log-probabilities, each spelled as logged, is what can be asked of it.
    """
    ids = tokenizer.encode(answer.output_text)
    count = len(answer.tokens) or len(answer.log_probs or ())
    # Stop texts end an answer without an end token.
    lacks_end = len(ids) == count - 1 if count else not answer.settings.stop
    if answer.finish_reason == "stop" and lacks_end:
        last = tokenizer.encode(answer.tokens[-1]) if answer.tokens else []
        end = tokenizer.eos_token_id
        ids += last if len(last) == 1 else [end] if end is not None else []
    if count and len(ids) != count:
        raise Skipped(SkipReason.OTHER_SPLIT)
    for token, index in zip(answer.tokens, ids, strict=False):
        piece = tokenizer.decode([index], skip_special_tokens=False)
        if token and token.strip() != piece.strip() and _PART_OF_A_CHARACTER not in piece:
            raise Skipped(SkipReason.OTHER_SPLIT)
    return tuple(ids)

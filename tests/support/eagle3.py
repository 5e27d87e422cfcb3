"""A small EAGLE-3 head for any tiny target, fitted to it in a moment so that it is often right.

The usual tiny targets are hard to guess, which leaves it right in a fifth of the greedy positions;
`tiny_model(..., head_scale=1.0, layer_scale=0.1)` is one that it follows more often than not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.eagle3.head import Eagle3Head
from engine.drafters.eagle3.unroll import unroll
from engine.engine import Engine
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.model import Transformer
from engine.request import Request
from engine.sampling import SamplingParams

_NUM_TEXTS = 64
_TEXT_TOKENS = 24
_FIT_STEPS = 60
_CHAIN = 2
_LEARNING_RATE = 3e-2


def eagle3(engine: Engine) -> Eagle3Drafter:
    """A fitted head that drafts most of the vocabulary."""
    return eagle3_with(engine, fitted_head(engine.target))


def eagle3_with(
    engine: Engine, head: Eagle3Head, kind: type[Eagle3Drafter] = Eagle3Drafter
) -> Eagle3Drafter:
    """A drafter for an engine's slots that borrows the target's embedding."""
    target = engine.target
    cache = KvCache.allocate(
        head.config.decoder, engine.cache.num_slots, engine.max_len, target.dtype, target.device
    )
    return kind("eagle3", head, target.embedding, cache, backend=target.backend, num_weight_bytes=0)


def columns_of(vocab_size: int) -> list[int]:
    """The target's ids that a tiny head drafts: draft ids and target ids differ from 2 on."""
    return [token for token in range(vocab_size) if token % 7 != 2]


def feature_layers(target: Transformer) -> tuple[int, ...]:
    """The last three states of a target of at least two layers."""
    last = target.config.num_layers
    return (last - 2, last - 1, last)


def random_head(
    target: Transformer, *, layers: tuple[int, ...] | None = None, seed: int = 22
) -> Eagle3Head:
    """A seeded head that has learnt nothing.

    Args:
        target: Gives the shape.
        layers: States it reads; by default those of `feature_layers`.
        seed: Seed of the weights.
    """
    config = target.config
    columns = torch.tensor(columns_of(config.vocab_size))
    head = Eagle3Head(
        Eagle3Config(
            decoder=replace(config, num_layers=1),
            draft_vocab_size=columns.shape[0],
            target_hidden_size=config.hidden_size,
            feature_layers=layers or feature_layers(target),
            norm_before_residual=False,
        )
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise + (parameter.dim() == 1))
        head.d2t.copy_(columns - torch.arange(columns.shape[0]))
        head.t2d.copy_(torch.isin(torch.arange(config.vocab_size), columns))
    return head.requires_grad_(False)


@cache
def fitted_head(target: Transformer, layers: tuple[int, ...] | None = None) -> Eagle3Head:
    """A head that has learnt the target's next tokens along some of its own texts.

    Args:
        target: Kept, with its head, for as long as the tests run.
        layers: As in `random_head`.
    """
    head = random_head(target, layers=layers).requires_grad_(True)
    texts = _texts(target)
    features, wanted = _lessons(target, texts, head.config.feature_layers)
    length = features.shape[1]
    embedded = torch.zeros(_NUM_TEXTS, length + _CHAIN, target.config.hidden_size)
    embedded[:, :length] = target.embedding[texts[:, 1:]]
    starts = torch.arange(length - _CHAIN).expand(_NUM_TEXTS, -1)
    rotary = RotaryTables.build(head.config.decoder, length, torch.float32, torch.device("cpu"))
    optimizer = torch.optim.Adam(head.parameters(), lr=_LEARNING_RATE)
    for _ in range(_FIT_STEPS):
        loss = torch.zeros(())
        for step, out in enumerate(unroll(head, embedded, features, starts, rotary, _CHAIN)):
            taught = wanted[:, 1 + step : 1 + step + starts.shape[1]]
            log_q = head.logits(out).log_softmax(dim=-1)
            loss = loss - (taught * log_q).sum(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return head.requires_grad_(False)


def _texts(target: Transformer) -> Tensor:
    """[texts, tokens]: answers of the target to prompts of one token, greedy and sampled."""
    engine = Engine(
        target,
        eos_token_ids=(),
        max_batch_size=_NUM_TEXTS,
        max_len=min(_TEXT_TOKENS, target.max_len),
    )
    asked = [
        Request(
            request_id=str(index),
            prompt_tokens=(index % target.config.vocab_size,),
            params=SamplingParams(
                temperature=index % 4 / 3, max_tokens=engine.max_len - 1, seed=index
            ),
        )
        for index in range(_NUM_TEXTS)
    ]
    sequences, _ = engine.generate(asked, batch_size=_NUM_TEXTS)
    return torch.tensor([sequence.tokens for sequence in sequences])


def _lessons(target: Transformer, texts: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The target's states, and its law over the head's columns after every token but the last."""
    rows, length = texts.shape[0], texts.shape[1] - 1
    cache = KvCache.allocate(target.config, rows, length, target.dtype, target.device)
    layout = make_layout(range(rows), [0] * rows, [length] * rows, device=target.device)
    with torch.no_grad():
        hidden, features = target.forward_with_features(
            texts[:, :-1].flatten(), layout, cache, layers
        )
        law = target.logits(hidden)[:, columns_of(target.config.vocab_size)].softmax(dim=-1)
    return features.view(rows, length, -1), law.view(rows, length, -1)

"""Slow second implementations in plain Python floats (float64), to compare the engine with."""

from __future__ import annotations

import math
from itertools import product

import torch

from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.model import Transformer


def reference_probs(
    logits: list[float], temperature: float, top_k: int = 0, top_p: float = 1.0
) -> list[float]:
    """Temperature, then top-k, then top-p, in float64. Logits without ties."""
    best = max(logits)
    if temperature == 0.0:
        return [float(i == logits.index(best)) for i in range(len(logits))]
    weights = [math.exp((x - best) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    kept = order[:top_k] if top_k else order
    total = math.fsum(weights[i] for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        nucleus.append(i)
        mass += weights[i] / total
        if mass >= top_p:
            break
    total = math.fsum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(logits))]


def plain_logits(model: Transformer, rows: list[tuple[int, ...]]) -> torch.Tensor:
    """[rows, vocab] logits after token lists of one length, each by one whole forward pass."""
    length = len(rows[0])
    cache = KvCache.allocate(model.config, len(rows), length, model.dtype, model.device)
    layout = make_layout(
        range(len(rows)),
        [0] * len(rows),
        [length] * len(rows),
        device=model.device,
    )
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(rows).flatten(), layout, cache)
        return model.logits(hidden[layout.row_ends - 1])


def output_law(
    model: Transformer,
    prompt: tuple[int, ...],
    num_tokens: int,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> dict[tuple[int, ...], float]:
    """Exact joint law of the first tokens after a prompt, by enumeration of all prefixes."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    vocab = range(model.config.vocab_size)
    for length in range(num_tokens):
        prefixes = list(product(vocab, repeat=length))
        logits = plain_logits(model, [prompt + prefix for prefix in prefixes]).tolist()
        law |= {
            (*prefix, token): law[prefix] * p
            for prefix, row in zip(prefixes, logits, strict=True)
            for token, p in enumerate(reference_probs(row, temperature, top_k, top_p))
        }
    return {tokens: p for tokens, p in law.items() if len(tokens) == num_tokens}

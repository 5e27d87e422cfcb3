"""From logits to a distribution, from a distribution to a token.

The same functions serve the target and the drafters: what a draft token is verified against is
exactly what it was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import NumericError, RequestError

_NUCLEUS_GUESS = (
    256  # most nuclei are far smaller than the vocabulary: a full sort is rarely needed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request wants its tokens.

    Attributes:
        temperature: 0 takes the most likely token; any positive value samples.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Keep this many most likely tokens; 0 is off.
        max_tokens: Output tokens at most, the end token included.
        seed: Seed of the request's randomness.
        ignore_eos: Go on after an end token (measurements only).
        stop_token_ids: Further ids that end the output.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 128
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature = {self.temperature}: must be 0 or more, and finite")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p = {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise RequestError(f"top_k = {self.top_k}: must be 0 (off) or more")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens = {self.max_tokens}: must be 1 or more")

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0: exact argmax, no division."""
        return self.temperature == 0.0


def processed_probs(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
) -> Tensor:
    """Distributions after temperature, top-k and top-p, in that order.

    Args:
        logits: [num_tokens, vocab] float. Not modified.
        temperatures: One per row; 0 gives a one-hot row on the first largest logit.
        top_ks: One per row; 0 is off. Ties with the k-th value are kept.
        top_ps: One per row; 1 is off. The smallest prefix of the sorted tokens with at least
            this mass is kept, with ties of its last token.

    Returns:
        [num_tokens, vocab] float32, rows sum to 1.

    Raises:
        NumericError: A row has NaN or no finite logit.

    Source: order of processing as in vLLM v1.
    """
    logits = logits.float()
    check_logits(logits)
    greedy = [t == 0.0 for t in temperatures]
    # Beyond float32 a temperature would turn into 0 or infinity, and 0 / 0 is NaN.
    bounds = torch.finfo(torch.float32)
    scale = torch.tensor(
        [1.0 if t == 0.0 else min(max(t, bounds.tiny), bounds.max) for t in temperatures]
    )
    scale = scale.to(logits.device).unsqueeze(1)
    # Shifting by the maximum first keeps tiny temperatures finite.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / scale
    for row, (top_k, top_p) in enumerate(zip(top_ks, top_ps, strict=True)):
        if greedy[row]:
            continue
        if 0 < top_k < scaled.shape[1]:
            threshold = scaled[row].topk(top_k).values[-1]
            scaled[row].masked_fill_(scaled[row] < threshold, float("-inf"))
        if top_p < 1.0:
            _keep_nucleus(scaled[row], top_p)
    probs = torch.softmax(scaled, dim=-1)
    if any(greedy):
        rows = torch.tensor(greedy, device=logits.device)
        best = logits[rows].argmax(dim=-1, keepdim=True)
        probs[rows] = torch.zeros_like(probs[rows]).scatter_(1, best, 1.0)
    return probs


def check_logits(logits: Tensor) -> None:
    """Refuse rows that no distribution can be made of.

    Raises:
        NumericError: A row of [num_tokens, vocab] has NaN, +inf or only -inf.
    """
    if not bool(torch.isfinite(logits.amax(dim=-1)).all()):
        raise NumericError("logits hold NaN or no finite value: the model is broken")


def sample_from(probs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Inverse-CDF sampling, one uniform per row.

    Args:
        probs: [num_tokens, vocab], non-negative; rows need not be normalised.
        uniforms: One number in [0, 1) per row.

    Returns:
        [num_tokens] int64. A token of zero probability is never returned, for no uniform.
    """
    cumulative = probs.double().cumsum(dim=-1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=probs.device).unsqueeze(1)
    points = points * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, points, right=True).squeeze(1)
    # Rounding may lift a point to the very end: step back to the last token with mass.
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    return torch.minimum(tokens, last)


def _keep_nucleus(scaled: Tensor, top_p: float) -> None:
    """Set everything outside the top-p nucleus of one row [vocab] to -inf, in place.

    Ties with the last token of the nucleus are kept, so the result does not depend on how a sort
    breaks them.
    """
    log_total = scaled.logsumexp(dim=-1)
    count = min(_NUCLEUS_GUESS, scaled.shape[0])
    while True:
        values = scaled.topk(count).values
        cumulative = (values - log_total).exp().double().cumsum(dim=-1)
        if count == scaled.shape[0] or float(cumulative[-1]) >= top_p:
            break
        count = min(count * 8, scaled.shape[0])
    kept = int((cumulative < top_p).sum())
    scaled.masked_fill_(scaled < values[min(kept, count - 1)], float("-inf"))

"""From logits to a distribution, from a distribution to a token.

The same functions serve the target and the drafters: what a draft token is verified against is
exactly what it was drawn from. Each is readable torch here, and native where the kernels load.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.errors import NumericError
from engine.kernels.native.bindings import Library, load
from engine.kernels.native.sampling import NativeSampling
from engine.rng import Key, Purpose, uniform

_NUCLEUS_GUESS = 256  # most nuclei are far smaller than the vocabulary


def best_tokens(logits: Tensor) -> Tensor:
    """The most likely token of every row, the first of equals.

    Args:
        logits: [num_tokens, vocab] float.

    Returns:
        [num_tokens] int64.

    Raises:
        NumericError: A row has NaN, +inf or no finite logit.
    """
    native = native_for(logits)
    if native is None:
        _check(logits)
        return logits.argmax(dim=-1)
    tokens = native.best_tokens(logits.contiguous())
    if tokens is None:
        raise broken_logits()
    return tokens


def processed_probs(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Distributions after temperature, top-k and top-p, in that order.

    Args:
        logits: [num_tokens, vocab] float. Not modified.
        temperatures: One per row; 0 gives a one-hot row on the first largest logit.
        top_ks: One per row; 0 is off. Ties with the k-th value are kept.
        top_ps: One per row; 1 is off. The smallest prefix of the sorted tokens with at least
            this mass is kept, with ties of its last token.
        rows: The rows of the logits that are wanted, in this order; None takes all.

    Returns:
        [rows, vocab] float32, each row sums to 1.

    Raises:
        NumericError: A row has NaN, +inf or no finite logit.

    Source: order of processing as in vLLM v1.
    """
    native = native_for(logits)
    if native is None:
        chosen = logits if rows is None else logits[torch.tensor(rows, device=logits.device)]
        return _processed(chosen.float(), temperatures, top_ks, top_ps)
    rows = range(logits.shape[0]) if rows is None else rows
    found = native.process(logits.contiguous(), rows, temperatures, top_ks, top_ps)
    if found is None:
        raise broken_logits()
    return found


def sample_from(probs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Inverse-CDF sampling, one uniform per row.

    Args:
        probs: [num_tokens, vocab], non-negative; rows need not be normalised.
        uniforms: One number in [0, 1) per row.

    Returns:
        [num_tokens] int64. A token of zero probability is never returned, for no uniform.

    Raises:
        NumericError: A row has no mass, or NaN.
    """
    native = native_for(probs)
    if native is not None:
        drawn = native.sample(probs if probs.stride(1) == 1 else probs.contiguous(), uniforms)
        if min(drawn, default=0) < 0:
            raise NumericError("a distribution has NaN or no mass: the model is broken")
        return torch.tensor(drawn, dtype=torch.int64)
    cumulative = probs.double().cumsum(dim=-1)
    if not bool((cumulative[:, -1] > 0).all()):
        raise NumericError("a distribution has NaN or no mass: the model is broken")
    points = torch.tensor(uniforms, dtype=torch.float64, device=probs.device).unsqueeze(1)
    points = points * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, points, right=True).squeeze(1)
    # Rounding may lift a point to the very end: step back to the last token with mass.
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    return torch.minimum(tokens, last)


def draw(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    keys: Sequence[Key],
    out: Tensor,
    columns: Tensor | None = None,
) -> list[int]:
    """A draft token for every row, and what it was drawn from.

    Args:
        logits: [B, drafted] float. Not modified.
        temperatures: As in `processed_probs`.
        top_ks: As in `processed_probs`.
        top_ps: As in `processed_probs`.
        keys: Of the position that is drafted, for every row.
        out: [B, vocab] float32, each row in one piece; takes the distributions.
        columns: [drafted] int64, where each column of the logits belongs in `out`, whose other
            columns stay as they are; None if they are the same.

    Returns:
        The column of the logits that was drawn in every row.

    Raises:
        NumericError: A row has NaN, +inf or no finite logit.
    """
    native = native_for(logits, out)
    if native is None:
        probs = processed_probs(logits, temperatures, top_ks, top_ps)
        if columns is None:
            out.copy_(probs)
        else:
            out[:, columns] = probs
        return sample_from(probs, [uniform(*key, Purpose.DRAFT) for key in keys]).tolist()
    drawn = native.draw(logits.contiguous(), temperatures, top_ks, top_ps, keys, out, columns)
    if drawn is None:
        raise broken_logits()
    return drawn


def sample_residual(p: Tensor, q: Tensor | None, draft: int, uniform: float) -> int | None:
    """The token in place of a rejected draft, from norm(max(p - q, 0)).

    Args:
        p: [vocab] float32, the target's distribution.
        q: [vocab] float32, what the draft was drawn from; None if it was certain.
        draft: The rejected token.
        uniform: A number in [0, 1).

    Returns:
        The token; None if nothing is left, which only rounding can bring about.

    Source: Leviathan et al. 2023, section 2.3.
    """
    native = native_for(p) if q is None else native_for(p, q)
    if native is not None:
        token = native.residual(
            p.contiguous(), None if q is None else q.contiguous(), draft, uniform
        )
        return token if token >= 0 else None
    if q is None:
        q = torch.zeros_like(p)
        q[draft] = 1.0
    residual = (p - q).clamp_min(0).unsqueeze(0)
    return int(sample_from(residual, [uniform])) if bool(residual.any()) else None


def native_for(*values: Tensor) -> NativeSampling | None:
    """The native functions where they load and can read such values."""
    if any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in values):
        return None
    library = load()
    return NativeSampling(library) if isinstance(library, Library) else None


def _processed(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
) -> Tensor:
    """The reference of `processed_probs`."""
    _check(logits)
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


def _check(logits: Tensor) -> None:
    if not bool(torch.isfinite(logits.amax(dim=-1)).all()):
        raise broken_logits()


def broken_logits() -> NumericError:
    """The error for logits that make no distribution."""
    return NumericError("logits hold NaN or no finite value: the model is broken")


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

"""What a drafter is trained to lower."""

from __future__ import annotations

from torch import Tensor

_ETA = 3.0


def distillation_loss(draft_logits: Tensor, target_log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Divergence of the draft from the target, leaning towards acceptance as that grows.

    A blend of KL(p || q), whose gradient reaches tokens that the draft misses altogether, and of
    the total variation 1 - sum min(p, q), which is the rejection rate itself. The weight of KL is
    exp(-3 a) with the batch's acceptance a.

    Args:
        draft_logits: [N, columns], already divided by the temperature.
        target_log_probs: [N, columns], normalised over the same columns; no gradient.

    Returns:
        The mean loss, and the mean acceptance sum min(p, q) without gradient.

    Source: the hybrid loss of arXiv 2602.23881.
    """
    log_q = draft_logits.log_softmax(dim=-1)
    p = target_log_probs.exp()
    kl = (p * (target_log_probs - log_q)).sum(dim=-1).mean()
    accepted = log_q.exp().minimum(p).sum(dim=-1).mean()
    weight = (-_ETA * accepted.detach()).exp()
    return weight * kl + (1 - weight) * (1 - accepted), accepted.detach()

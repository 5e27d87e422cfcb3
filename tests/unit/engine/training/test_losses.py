"""The distillation loss against its definition."""

from __future__ import annotations

from math import exp

import pytest
import torch
from torch import Tensor

from engine.training.losses import distillation_loss


def laws(rows: int = 3, columns: int = 5) -> tuple[Tensor, Tensor]:
    """Draft logits that want a gradient, and log-probabilities of the target."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    target = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), target.log_softmax(dim=-1)


def test_acceptance_is_the_overlap() -> None:
    """Mean of sum min(p, q), without gradient."""
    logits, target = laws()
    overlap = torch.minimum(logits.detach().softmax(-1), target.exp()).sum(-1).mean()
    _, accepted = distillation_loss(logits, target)
    assert float(accepted) == pytest.approx(float(overlap))
    assert not accepted.requires_grad


def test_the_blend_is_the_papers() -> None:
    """exp(-3 a) of the divergence, the rest of the rejection rate 1 - sum min(p, q)."""
    logits, target = laws()
    p, q = target.exp(), logits.detach().softmax(-1)
    divergence = float((p * (p / q).log()).sum(-1).mean())
    overlap = float(torch.minimum(p, q).sum(-1).mean())
    loss, _ = distillation_loss(logits, target)
    weight = exp(-3 * overlap)
    assert float(loss.detach()) == pytest.approx(weight * divergence + (1 - weight) * (1 - overlap))


def test_without_overlap_it_is_the_divergence() -> None:
    """A draft that is certain of the wrong token still has a gradient that helps."""
    logits = torch.tensor([[30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[-40.0, 0.0]], dtype=torch.float64).log_softmax(-1)
    loss, accepted = distillation_loss(logits, target)
    assert float(accepted) == pytest.approx(0.0, abs=1e-12)
    assert float(loss.detach()) == pytest.approx(30.0, rel=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert float(logits.grad[0, 1]) == pytest.approx(-1.0, rel=1e-6)


def test_equal_laws_cost_nothing() -> None:
    """The loss and its gradient vanish when the draft is the target."""
    _, target = laws()
    logits = target.clone().requires_grad_()
    loss, accepted = distillation_loss(logits, target)
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-12)
    assert float(accepted) == pytest.approx(1.0)


def test_gradient_is_that_of_both_parts() -> None:
    """Autograd agrees with finite differences; the blend's weight counts as a constant."""
    logits, target = laws()
    loss, accepted = distillation_loss(logits, target)
    loss.backward()
    weight = float((-3.0 * accepted).exp())

    def fixed(values: Tensor) -> float:
        log_q, p = values.log_softmax(-1), target.exp()
        divergence = (p * (target - log_q)).sum(-1).mean()
        overlap = torch.minimum(log_q.exp(), p).sum(-1).mean()
        return float(weight * divergence + (1 - weight) * (1 - overlap))

    assert logits.grad is not None
    step = 1e-6
    for row in range(logits.shape[0]):
        for column in range(logits.shape[1]):
            moved = logits.detach().clone()
            moved[row, column] += step
            above = fixed(moved)
            moved[row, column] -= 2 * step
            slope = (above - fixed(moved)) / (2 * step)
            assert float(logits.grad[row, column]) == pytest.approx(slope, abs=1e-7)

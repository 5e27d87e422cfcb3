"""Does a head read the states it was trained on?

Two conventions for layer ids are in use, one apart, and a wrong one raises no error: acceptance
just falls to a fraction. So the neighbours are tried on real text before a head is searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.engine import Engine
from engine.layout import make_layout

_SHIFTS = (-1, 0, 1)
_CHANCE_ERRORS = 3.0
_MIN_POSITIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often a head's first draft is the target's most likely token.

    Attributes:
        layers: The states that the head says it reads.
        num_positions: Drafts compared.
        agreement: Share of equal tokens for each shift of all layer ids; 0 is as configured.
        differing: Share of the positions where exactly one of the shifted and the configured ids
            agrees: all are tried on the same text, so only there they can be told apart.
        chance: Share of the commonest of the target's tokens: what drafting it always would get.
    """

    layers: tuple[int, ...]
    num_positions: int
    agreement: Mapping[int, float]
    differing: Mapping[int, float]
    chance: float

    @property
    def better_layers(self) -> tuple[int, ...] | None:
        """Neighbouring ids that agree more often by over three standard errors, if any.

        Source: the standard error of a difference of paired proportions (McNemar 1947).
        """
        own = self.agreement[0]
        shift = max(self.agreement, key=lambda s: self.agreement[s])
        error = (self.differing[shift] / max(self.num_positions, 1)) ** 0.5
        if self.agreement[shift] - own <= _CHANCE_ERRORS * error:
            return None
        return tuple(layer + shift for layer in self.layers)

    @property
    def is_chance(self) -> bool:
        """Not even three standard errors better than drafting one and the same token.

        Never said of fewer than 200 positions, where a fair head may look like it.
        """
        if self.num_positions < _MIN_POSITIONS:
            return False
        error = (self.chance * (1 - self.chance) / self.num_positions) ** 0.5
        return bool(self.agreement[0] <= self.chance + _CHANCE_ERRORS * error)


@torch.inference_mode()
def calibrate(
    drafter: Eagle3Drafter, engine: Engine, texts: Sequence[Sequence[int]]
) -> Calibration:
    """Compare a head with its target on known text, under neighbouring layer ids.

    Args:
        drafter: The head.
        engine: Holds the target; no request may be running. Slot 0 is used.
        texts: Token ids, about 2,000 in all; those of fewer than three tokens are passed over.
    """
    target, layers = engine.target, drafter.feature_layers
    shifts = [
        shift
        for shift in _SHIFTS
        if layers[0] + shift >= 0 and layers[-1] + shift < target.config.num_layers
    ]
    wanted = sorted({layer + shift for shift in shifts for layer in layers})
    equal: dict[int, list[Tensor]] = {shift: [] for shift in shifts}
    counts = torch.zeros(target.config.vocab_size, dtype=torch.int64)
    for tokens in texts:
        if len(tokens) < 3:
            continue
        flat = torch.tensor(tokens, device=target.device)
        layout = make_layout([0], [0], [len(tokens)], device=target.device)
        hidden, states = target.forward_with_features(flat, layout, engine.cache, wanted)
        truth = target.logits(hidden[1:]).argmax(dim=-1)
        counts += torch.bincount(truth.cpu(), minlength=counts.shape[0])
        parts = dict(zip(wanted, states.chunk(len(wanted), dim=-1), strict=True))
        for shift in shifts:
            features = torch.cat([parts[layer + shift] for layer in layers], dim=-1)
            equal[shift].append((drafter.first_drafts(tokens, features) == truth).cpu())
    num_positions = int(counts.sum())
    agrees = {shift: torch.cat(found) for shift, found in equal.items() if found}
    own = agrees.get(0, torch.zeros(0, dtype=torch.bool))
    return Calibration(
        layers=layers,
        num_positions=num_positions,
        agreement={s: int(agrees.get(s, own).sum()) / max(num_positions, 1) for s in shifts},
        differing={
            s: int((agrees.get(s, own) != own).sum()) / max(num_positions, 1) for s in shifts
        },
        chance=int(counts.max()) / max(num_positions, 1),
    )

"""An EAGLE-3 head that drafts one token at a time, in plain NumPy float64.

Written from the method's description, to compare the engine with: every position is processed
alone, in order, and its key and value are appended to two lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What the weights do not tell."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    norm_before_residual: bool


class SlowHead:
    """The head's one layer with its keys and values so far."""

    def __init__(self, weights: Mapping[str, Array], shape: HeadShape) -> None:
        """Start without context; the weights have the names of the checkpoints."""
        self._weights = weights
        self._shape = shape
        self._keys: list[Array] = []
        self._values: list[Array] = []

    def fuse(self, target_states: Array) -> Array:
        """[3 target hidden] -> [hidden]."""
        return self._weights["fc.weight"] @ target_states

    def step(self, feature: Array, embedded: Array, position: int) -> Array:
        """Process one pair of feature and token; the layer's output, before the final norm."""
        shape = self._shape
        token = self._normed("midlayer.input_layernorm", embedded)
        normed = self._normed("midlayer.hidden_norm", feature)
        residual = normed if shape.norm_before_residual else feature
        both = np.concatenate([token, normed])
        query = self._heads("q", both)
        self._keys.append(np.stack([self._rotated(k, position) for k in self._heads("k", both)]))
        self._values.append(self._heads("v", both))
        attended = [
            self._attend(self._rotated(head, position), index * shape.num_kv_heads // len(query))
            for index, head in enumerate(query)
        ]
        projected = self._weights["midlayer.self_attn.o_proj.weight"] @ np.concatenate(attended)
        hidden: Array = residual + projected
        normed = self._normed("midlayer.post_attention_layernorm", hidden)
        gate = self._weights["midlayer.mlp.gate_proj.weight"] @ normed
        up = self._weights["midlayer.mlp.up_proj.weight"] @ normed
        gated = gate / (1 + np.exp(-gate)) * up
        out: Array = hidden + self._weights["midlayer.mlp.down_proj.weight"] @ gated
        return out

    def logits(self, out: Array) -> Array:
        """[hidden] -> [draft vocab]."""
        return self._weights["lm_head.weight"] @ self._normed("norm", out)

    def _normed(self, name: str, x: Array) -> Array:
        scaled: Array = x / np.sqrt(np.mean(x * x) + self._shape.eps)
        return scaled * self._weights[f"{name}.weight"]

    def _heads(self, part: str, both: Array) -> Array:
        projected = self._weights[f"midlayer.self_attn.{part}_proj.weight"] @ both
        return projected.reshape(-1, self._shape.head_dim)

    def _rotated(self, x: Array, position: int) -> Array:
        """Each pair (x[i], x[i + half]) is turned by position / theta^(2 i / head_dim)."""
        half = len(x) // 2
        turned = x.copy()
        for i in range(half):
            angle = position / self._shape.rope_theta ** (2 * i / len(x))
            cos, sin = np.cos(angle), np.sin(angle)
            turned[i] = x[i] * cos - x[i + half] * sin
            turned[i + half] = x[i + half] * cos + x[i] * sin
        return turned

    def _attend(self, query: Array, kv_head: int) -> Array:
        scores = np.array([query @ key[kv_head] for key in self._keys]) / np.sqrt(len(query))
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed: Array = sum(
            (w * v[kv_head] for w, v in zip(weights, self._values, strict=True)),
            np.zeros(len(query)),
        )
        return mixed


def forced_chain(
    weights: Mapping[str, Array],
    shape: HeadShape,
    embedding: Array,
    features: Array,
    tokens: Sequence[int],
    start: int,
    num_steps: int,
) -> tuple[Array, Array]:
    """What a round that begins at `start` drafts, if the text bears out every draft.

    Args:
        weights: By the names of the checkpoints.
        shape: What they do not tell.
        embedding: [vocab, hidden].
        features: [at least start + 1, 3 target hidden], of token t at t.
        tokens: The text; `start + num_steps + 1` tokens of it are read.
        start: The last position that the target has processed; its next token is known.
        num_steps: Drafts.

    Returns:
        Outputs of the layer [num_steps, hidden], and logits [num_steps, draft vocab]. Step j
        drafts token `start + 2 + j`.
    """
    head = SlowHead(weights, shape)
    for position in range(start + 1):
        out = head.step(head.fuse(features[position]), embedding[tokens[position + 1]], position)
    outputs = [out]
    for position in range(start + 1, start + num_steps):
        outputs.append(head.step(outputs[-1], embedding[tokens[position + 1]], position))
    return np.stack(outputs), np.stack([head.logits(one) for one in outputs])

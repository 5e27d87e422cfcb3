"""The Llama-family decoder used for targets and drafts alike.

One forward pass takes a ragged batch (prefill, decode and verification differ only in how many
tokens a row brings). Linear layers see the flat tokens, attention sees a padded view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import AttentionPass, RotaryTables, attend
from engine.checkpoint.config import ModelConfig
from engine.kv_cache import KvCache
from engine.layout import StepLayout
from engine.linear import Linear, LinearBackend, make_linear, resolve_backend


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer; q, k, v and gate, up are fused into one product each."""

    attention_norm: Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Transformer:
    """A dense decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    Source: Touvron et al. 2023 (Llama); Hugging Face layout of the weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[DecoderLayer],
        embedding: Tensor,
        final_norm: Tensor,
        head: Linear,
        backend: LinearBackend,
        max_len: int,
    ) -> None:
        """Assemble a model from loaded parts; `from_weights` is the usual way in.

        Args:
            config: The checkpoint's configuration.
            layers: Decoder layers in order.
            embedding: [vocab, hidden].
            final_norm: [hidden].
            head: [num_tokens, hidden] -> [num_tokens, vocab].
            backend: Linear backend the parts were built with.
            max_len: Positions the rotary tables cover.
        """
        self.config = config
        self.layers = tuple(layers)
        self.embedding = embedding
        self.final_norm = final_norm
        self.head = head
        self.backend = backend
        self.max_len = max_len
        self._rotary = RotaryTables.build(config, max_len, embedding.dtype, embedding.device)

    @classmethod
    def from_weights(
        cls,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        backend: LinearBackend | None = None,
        max_len: int | None = None,
        head: Linear | None = None,
    ) -> Transformer:
        """Build from Hugging Face tensor names.

        Args:
            config: From `read_config`.
            weights: From `read_weights`; any floating dtype.
            dtype: Compute and storage type.
            device: Defaults to the CPU.
            backend: Linear backend; None resolves to the fastest available.
            max_len: Positions to support; None takes the checkpoint's maximum.
            head: Another model's output head to share; None makes one of the weights.
        """
        device = device or torch.device("cpu")
        backend = backend or resolve_backend(device, dtype)

        def get(name: str) -> Tensor:
            return weights[name].to(device=device, dtype=dtype)

        def linear(*names: str, bias: bool = False) -> Linear:
            weight = torch.cat([get(f"{name}.weight") for name in names])
            joined = torch.cat([get(f"{name}.bias") for name in names]) if bias else None
            return make_linear(weight, joined, backend)

        layers = []
        for index in range(config.num_layers):
            prefix = f"model.layers.{index}"
            attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
            layers.append(
                DecoderLayer(
                    attention_norm=get(f"{prefix}.input_layernorm.weight"),
                    qkv=linear(
                        *(f"{attention}.{part}_proj" for part in "qkv"), bias=config.qkv_bias
                    ),
                    attention_out=linear(f"{attention}.o_proj"),
                    mlp_norm=get(f"{prefix}.post_attention_layernorm.weight"),
                    gate_up=linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
                    down=linear(f"{mlp}.down_proj"),
                )
            )
        embedding = get("model.embed_tokens.weight")
        if head is None:
            rows = embedding if config.tie_word_embeddings else get("lm_head.weight")
            head = make_linear(rows, None, backend)
        return cls(
            config,
            layers,
            embedding,
            get("model.norm.weight"),
            head,
            backend,
            max_len or config.max_position_embeddings,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Compute type."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    def first_layers(self, num_layers: int) -> Transformer:
        """The model cut after `num_layers`, with its own final norm and head (no copy).

        Raises:
            ValueError: `num_layers` is not between 1 and the number of layers less one.
        """
        if not 1 <= num_layers < self.config.num_layers:
            raise ValueError(
                f"num_layers = {num_layers}: must be between 1 and {self.config.num_layers - 1}"
            )
        return Transformer(
            replace(self.config, num_layers=num_layers),
            self.layers[:num_layers],
            self.embedding,
            self.final_norm,
            self.head,
            self.backend,
            self.max_len,
        )

    def forward(self, tokens: Tensor, layout: StepLayout, cache: KvCache) -> Tensor:
        """Run the layers and write the tokens' keys and values into the cache.

        Args:
            tokens: [T] int64, rows one after the other as `layout` says.
            layout: Where each token belongs.
            cache: Modified at the tokens' positions; lengths are left alone.

        Returns:
            [T, hidden], after the final norm.
        """
        return self.forward_with_features(tokens, layout, cache, ())[0]

    def forward_with_features(
        self, tokens: Tensor, layout: StepLayout, cache: KvCache, feature_layers: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the hidden states that a drafter reads.

        Args:
            tokens: As in `forward`.
            layout: As in `forward`.
            cache: As in `forward`.
            feature_layers: Ascending; X is the input of layer X, as Hugging Face counts its
                `hidden_states`: 0 is the embedding, the number of layers is the final state.

        Returns:
            The final states [T, hidden], and the features side by side
            [T, len(feature_layers) * hidden].
        """
        hidden = self.embedding[tokens]
        features = []
        shared = AttentionPass.prepare(self.config, layout, self._rotary)
        eps = self.config.rms_norm_eps
        size = (self.config.hidden_size,)
        for index, layer in enumerate(self.layers):
            if index in feature_layers:
                features.append(hidden)
            normed = functional.rms_norm(hidden, size, layer.attention_norm, eps)
            attended = attend(
                self.config, layer.qkv(normed), shared, cache.keys[index], cache.values[index]
            )
            hidden = hidden + layer.attention_out(attended)
            normed = functional.rms_norm(hidden, size, layer.mlp_norm, eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate).mul_(up))
        final = functional.rms_norm(hidden, size, self.final_norm, eps)
        if len(self.layers) in feature_layers:
            features.append(final)
        return final, torch.cat(features, dim=-1) if features else final[:, :0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, hidden] after the final norm -> [T, vocab] float32."""
        return self.head(hidden).float()

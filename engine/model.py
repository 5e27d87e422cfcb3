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

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.rope import inverse_frequencies
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
        angles = torch.outer(
            torch.arange(max_len, dtype=torch.float64), inverse_frequencies(config).double()
        )
        self._cos = angles.cos().to(embedding.dtype).to(embedding.device)
        self._sin = angles.sin().to(embedding.dtype).to(embedding.device)

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
    ) -> Transformer:
        """Build from Hugging Face tensor names.

        Args:
            config: From `read_config`.
            weights: From `read_weights`; any floating dtype.
            dtype: Compute and storage type.
            device: Defaults to the CPU.
            backend: Linear backend; None resolves to the fastest available.
            max_len: Positions to support; None takes the checkpoint's maximum.
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
        head = embedding if config.tie_word_embeddings else get("lm_head.weight")
        return cls(
            config,
            layers,
            embedding,
            get("model.norm.weight"),
            make_linear(head, None, backend),
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
        hidden = self.embedding[tokens]
        cos = self._cos[layout.positions].unsqueeze(1)
        sin = self._sin[layout.positions].unsqueeze(1)
        eps = self.config.rms_norm_eps
        size = (self.config.hidden_size,)
        # Grouped-query attention: the queries of a group ride as extra rows of their KV head.
        group = self.config.num_heads // self.config.num_kv_heads
        mask = layout.mask.repeat_interleave(group, dim=2) if group > 1 else layout.mask
        for index, layer in enumerate(self.layers):
            normed = functional.rms_norm(hidden, size, layer.attention_norm, eps)
            attended = self._attention(
                layer.qkv(normed), cos, sin, mask, layout, cache.keys[index], cache.values[index]
            )
            hidden = hidden + layer.attention_out(attended)
            normed = functional.rms_norm(hidden, size, layer.mlp_norm, eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate).mul_(up))
        return functional.rms_norm(hidden, size, self.final_norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, hidden] after the final norm -> [T, vocab] float32."""
        return self.head(hidden).float()

    def _attention(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        layout: StepLayout,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Causal attention of the new tokens over their rows' contexts.

        Args:
            qkv: [T, (num_heads + 2 num_kv_heads) * head_dim].
            cos: [T, 1, head_dim / 2].
            sin: Same shape.
            mask: [B, 1, Q * group, L].
            layout: As in `forward`.
            keys: [num_slots, num_kv_heads, max_len, head_dim]; written.
            values: Same shape; written.

        Returns:
            [T, num_heads * head_dim].
        """
        config = self.config
        num_kv, head_dim = config.num_kv_heads, config.head_dim
        group = config.num_heads // num_kv
        num_tokens = qkv.shape[0]
        heads = qkv.view(num_tokens, config.num_heads + 2 * num_kv, head_dim)
        rotated = _rotate(heads[:, : config.num_heads + num_kv], cos, sin)
        query = rotated[:, : config.num_heads]
        keys[layout.token_slots, :, layout.positions] = rotated[:, config.num_heads :]
        values[layout.token_slots, :, layout.positions] = heads[:, config.num_heads + num_kv :]
        if layout.pad_index is not None:
            query = query[layout.pad_index]
        batch, q_len = layout.batch_size, layout.max_q_len
        query = query.view(batch, q_len, num_kv, group, head_dim).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            query.reshape(batch, num_kv, q_len * group, head_dim),
            keys[layout.row_slots, :, : layout.kv_len],
            values[layout.row_slots, :, : layout.kv_len],
            attn_mask=mask,
        )
        out = out.view(batch, num_kv, q_len, group, head_dim).transpose(1, 2)
        out = out.reshape(batch * q_len, config.num_heads * head_dim)
        return out if layout.unpad_index is None else out[layout.unpad_index]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout (Su et al. 2021; Hugging Face's order).

    Args:
        x: [T, heads, head_dim].
        cos: [T, 1, head_dim / 2].
        sin: Same shape.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

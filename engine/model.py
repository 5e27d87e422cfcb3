"""The Llama-family decoder used for targets and drafts alike.

One forward pass takes a ragged batch (prefill, decode and verification differ only in how many
tokens a row brings). Linear layers see the flat tokens, attention sees a padded view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.kernels.attention import prepare_attention
from engine.kernels.backend import Backend, resolve_backend
from engine.kernels.decoder import Decoder, DecoderLayer
from engine.kernels.linear import Linear, RmsNorm, make_linear
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import StepLayout


class Transformer:
    """A dense decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    Source: Touvron et al. 2023 (Llama); Hugging Face layout of the weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[DecoderLayer],
        embedding: Tensor,
        final_norm: RmsNorm,
        head: Linear,
        backend: Backend,
        max_len: int,
    ) -> None:
        """Assemble a model from loaded parts; `from_weights` is the usual way in.

        Args:
            config: The checkpoint's configuration.
            layers: Decoder layers in order.
            embedding: [vocab, hidden].
            final_norm: Over the last layer's output.
            head: [num_tokens, hidden] -> [num_tokens, vocab].
            backend: The one the parts were built with.
            max_len: Positions the rotary tables cover.
        """
        self.config = config
        self.decoder = Decoder(layers)
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
        backend: Backend | None = None,
        max_len: int | None = None,
        head: Linear | None = None,
    ) -> Transformer:
        """Build from Hugging Face tensor names.

        Args:
            config: From `read_config`.
            weights: From `read_weights`; any floating dtype.
            dtype: Compute and storage type.
            device: Defaults to the CPU.
            backend: None takes the fastest that works here.
            max_len: Positions to support; None takes the checkpoint's maximum.
            head: Another model's output head to share; None makes one of the weights.
        """
        device = device or torch.device("cpu")
        backend = backend or resolve_backend(device, dtype).backend

        def get(name: str) -> Tensor:
            return weights[name].to(device=device, dtype=dtype)

        def norm(name: str) -> RmsNorm:
            return RmsNorm(get(f"{name}.weight"), config.rms_norm_eps)

        def joined(prefix: str, *parts: str, kind: str = "weight") -> Tensor:
            return torch.cat([get(f"{prefix}.{part}_proj.{kind}") for part in parts])

        layers = []
        for index in range(config.num_layers):
            layer = f"model.layers.{index}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            layers.append(
                DecoderLayer(
                    qkv=make_linear(
                        joined(attention, *"qkv"),
                        joined(attention, *"qkv", kind="bias") if config.qkv_bias else None,
                        backend,
                        norm=norm(f"{layer}.input_layernorm"),
                    ),
                    attention_out=make_linear(joined(attention, "o"), None, backend),
                    gate_up=make_linear(
                        joined(mlp, "gate", "up"),
                        None,
                        backend,
                        norm=norm(f"{layer}.post_attention_layernorm"),
                        is_gated=True,
                    ),
                    down=make_linear(joined(mlp, "down"), None, backend),
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
            norm("model.norm"),
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
            self.decoder.layers[:num_layers],
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
        attend = prepare_attention(self.config, layout, self._rotary, cache, self.backend)
        done, num_layers = 0, self.config.num_layers
        for layer in (*(layer for layer in feature_layers if layer < num_layers), num_layers):
            hidden = self.decoder(hidden, attend, done, layer)
            features.append(hidden)
            done = layer
        final = self.final_norm(hidden)
        # The last is the final state before its norm.
        features[-1] = final if num_layers in feature_layers else final[:, :0]
        return final, torch.cat(features, dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, hidden] after the final norm -> [T, vocab] float32."""
        return self.head(hidden).float()

"""The weights of an EAGLE-3 head, under the names that its checkpoints use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.eagle3_config import Eagle3Config
from engine.modules import AttentionProjections, GatedMlp


class _Layer(nn.Module):
    def __init__(self, decoder: ModelConfig) -> None:
        super().__init__()
        size, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.self_attn = AttentionProjections(decoder, 2 * size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = GatedMlp(decoder)


class Eagle3Head(nn.Module):
    """A head: `state_dict()` is the checkpoint, less the embedding that the target lends.

    Attributes:
        config: Shape and settings.
        fc: [3 target hidden -> hidden], fuses the target's states.
        midlayer: The decoder layer; its attention reads the token and the feature side by side.
        norm: Final norm; only the logits see it.
        lm_head: [hidden -> draft vocabulary].
        d2t: [draft vocab] int64, target id minus draft id.
        t2d: [vocab] bool, which target ids can be drafted.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        """Make a head with torch's usual initial weights and the first ids as its vocabulary."""
        super().__init__()
        self.config = config
        decoder = config.decoder
        self.fc = nn.Linear(3 * config.target_hidden_size, decoder.hidden_size, bias=False)
        self.midlayer = _Layer(decoder)
        self.norm = nn.RMSNorm(decoder.hidden_size, decoder.rms_norm_eps)
        self.lm_head = nn.Linear(decoder.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        ids = torch.arange(decoder.vocab_size)
        self.register_buffer("t2d", ids < config.draft_vocab_size)

    @property
    def target_ids(self) -> Tensor:
        """[draft vocab] int64: the target's id of every draft id."""
        return torch.arange(self.d2t.shape[0], device=self.d2t.device) + self.d2t

    def fuse(self, features: Tensor) -> Tensor:
        """[..., 3 target hidden] -> [..., hidden]: the input in place of an own earlier output."""
        # Mixed precision multiplies in a shorter type; the residual stream keeps its own.
        fused: Tensor = self.fc(features).to(self.norm.weight.dtype)
        return fused

    def attention_input(self, tokens_embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """What the projections read, and the residual.

        Args:
            tokens_embedded: [..., hidden], the embedding of the token after the feature's.
            feature: [..., hidden], fused target states or the head's own last output.

        Returns:
            [..., 2 hidden] and [..., hidden].
        """
        layer = self.midlayer
        normed = layer.hidden_norm(feature)
        joined = torch.cat((layer.input_layernorm(tokens_embedded), normed), dim=-1)
        return joined, normed if self.config.norm_before_residual else feature

    def after_attention(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Output projection, residual and MLP: [..., heads * head_dim] -> [..., hidden]."""
        layer = self.midlayer
        hidden = residual + layer.self_attn.o_proj(attended)
        normed = layer.post_attention_layernorm(hidden)
        out: Tensor = hidden + layer.mlp(normed)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] of the layer's output -> [..., draft vocab]."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores

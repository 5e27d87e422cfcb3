"""Trainable parts of a decoder layer, under the names that Hugging Face's checkpoints use."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from engine.checkpoint.config import ModelConfig


class AttentionProjections(nn.Module):
    """Queries, keys, values and output of one attention layer; the attention is the caller's.

    Attributes:
        q_proj: [in -> num_heads * head_dim].
        k_proj: [in -> num_kv_heads * head_dim].
        v_proj: Same shape.
        o_proj: [num_heads * head_dim -> hidden].
    """

    def __init__(self, config: ModelConfig, in_width: int) -> None:
        """Make the projections of `config` for inputs of `in_width`."""
        super().__init__()
        q_rows = config.num_heads * config.head_dim
        kv_rows = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(in_width, q_rows, bias=config.qkv_bias)
        self.k_proj = nn.Linear(in_width, kv_rows, bias=config.qkv_bias)
        self.v_proj = nn.Linear(in_width, kv_rows, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_rows, config.hidden_size, bias=False)


class GatedMlp(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the three projections of `config`."""
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out

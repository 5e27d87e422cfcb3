"""Training of a layer-pruned draft: a few layers of the target that learn to be adjacent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.checkpoint.config import ModelConfig
from engine.kernels.rotary import RotaryTables, rotate
from engine.modules import AttentionProjections, GatedMlp
from engine.profile import StartProfile, profile_tokens
from engine.record import Trajectory
from engine.training.batches import Batch
from engine.training.corpus import Example
from engine.training.losses import distillation_loss
from engine.training.student import Lesson
from engine.training.teacher import Teacher, loss_temperatures, target_log_probs

_RANDOM_COLUMNS = 2048
_INIT_NORM = 0.3


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = AttentionProjections(config, config.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(self, hidden: Tensor, rotary: RotaryTables) -> Tensor:
        """[B, L, hidden] -> the same, causal."""
        config, attention = self.config, self.self_attn
        normed = self.input_layernorm(hidden)

        def heads(projected: Tensor) -> Tensor:
            return projected.view(*projected.shape[:-1], -1, config.head_dim)

        query = rotate(heads(attention.q_proj(normed)), rotary).transpose(1, 2)
        key = rotate(heads(attention.k_proj(normed)), rotary).transpose(1, 2)
        value = heads(attention.v_proj(normed)).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + attention.o_proj(attended.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(hidden)
        out: Tensor = hidden + self.mlp(normed)
        return out


class _Body(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class PrunedDraft(nn.Module):
    """The trained part of a pruned draft: `state_dict()` has Hugging Face's names.

    The embedding and the output head are the target's, frozen.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Make `config.num_layers` layers and a final norm."""
        super().__init__()
        self.config = config
        self.model = _Body(config)

    def forward(self, embedded: Tensor, rotary: RotaryTables) -> Tensor:
        """[B, L, hidden] of embeddings -> the same after the final norm."""
        hidden = embedded
        positions = rotary.at(torch.arange(embedded.shape[1]))
        for layer in self.model.layers:
            hidden = layer(hidden, positions)
        out: Tensor = self.model.norm(hidden)
        return out


class PrunedStudent:
    """A pruned draft that learns to follow one target."""

    def __init__(self, draft: PrunedDraft, teacher: Teacher, frequent: Tensor, seed: int) -> None:
        """Wrap a draft.

        Args:
            draft: Its layers.
            teacher: The target.
            frequent: [n] int64, ids that are in every loss; each batch adds random others.
            seed: Seed of those.
        """
        self._draft = draft
        self._teacher = teacher
        others = torch.ones(teacher.config.vocab_size, dtype=torch.bool)
        others[frequent] = False
        self._frequent = frequent
        self._others = others.nonzero().squeeze(1)
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def module(self) -> nn.Module:
        """The trained part."""
        return self._draft

    def size(self, example: Example) -> int:
        """All tokens pass through all layers."""
        return example.tokens.shape[0]

    def lesson(self, batch: Batch) -> Lesson:
        """The draft of every answer token against the target's law."""
        positions = torch.arange(batch.states.shape[1])
        valid = (positions >= batch.prompt_lens.unsqueeze(1) - 1) & (
            positions < batch.lengths.unsqueeze(1) - 1
        )
        hidden = self._draft(self._teacher.embedding[batch.tokens[:, :-1]], self._teacher.rotary)
        rows = self._teacher.output_rows[self._columns()]
        temperatures = loss_temperatures(batch.temperatures).unsqueeze(1).expand(valid.shape)
        temperatures = temperatures[valid]
        final = batch.states[..., -hidden.shape[-1] :][valid]
        taught = target_log_probs(final, rows, temperatures)
        logits = (hidden[valid] @ rows.T) / temperatures.unsqueeze(1)
        loss, accepted = distillation_loss(logits, taught)
        return Lesson(loss, (float(accepted),), int(valid.sum()))

    @torch.inference_mode()
    def profile(self, trajectory: Trajectory, max_drafts: int, max_len: int) -> StartProfile:
        """As in `Student`."""
        prompt, output = trajectory.request.prompt_tokens, trajectory.output_tokens
        tokens = torch.tensor([*prompt, *output[:-1]])
        hidden = self._draft(self._teacher.embedding[tokens].unsqueeze(0), self._teacher.rotary)
        logits = hidden[0, len(prompt) :] @ self._teacher.output_rows.T
        return profile_tokens(logits, trajectory, [None], max_drafts=max_drafts, max_len=max_len)[0]

    def _columns(self) -> Tensor:
        if self._others.shape[0] <= _RANDOM_COLUMNS:
            return torch.cat((self._frequent, self._others))
        chosen = torch.randperm(self._others.shape[0], generator=self._generator)
        return torch.cat((self._frequent, self._others[chosen[:_RANDOM_COLUMNS]]))


def new_draft(config: ModelConfig, teacher: Teacher, kept: Sequence[int]) -> PrunedDraft:
    """A draft that starts as copies of the target's layers.

    Args:
        config: The target's with `len(kept)` layers.
        teacher: The target.
        kept: Layers of the target, ascending.
    """
    draft = PrunedDraft(config)
    state = {
        f"model.layers.{index}.{name}": tensor
        for index, layer in enumerate(kept)
        for name, tensor in teacher.layer(layer).items()
    }
    # Flatter than the target's: at first the draft is confident of the wrong token.
    state["model.norm.weight"] = teacher.weights["model.norm.weight"] * _INIT_NORM
    draft.load_state_dict(state)
    return draft

"""Training of an EAGLE-3 head: initial weights, loss, and its drafts along known text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.eagle3.forced import forced_logits
from engine.drafters.eagle3.head import Eagle3Head
from engine.drafters.eagle3.unroll import unroll
from engine.profile import StartProfile, profile_steps
from engine.record import Trajectory
from engine.training.batches import Batch
from engine.training.corpus import Example
from engine.training.losses import distillation_loss
from engine.training.student import Lesson
from engine.training.teacher import Teacher, loss_temperatures, target_log_probs

_STEPS = 3
_STEP_DECAY = 0.85
_INIT_STD = 0.01
_INIT_NORM = 0.5


class Eagle3Student:
    """A head that learns to draft for one target.

    Source: training-time test of arXiv 2503.01840, section 3.2; three steps, each weighing 0.85
    of the one before.
    """

    def __init__(self, head: Eagle3Head, teacher: Teacher) -> None:
        """Wrap a head whose vocabulary is set."""
        self._head = head
        self._teacher = teacher
        self._columns = head.target_ids
        self._teacher_rows = teacher.output_rows[self._columns]

    @property
    def module(self) -> nn.Module:
        """The head."""
        return self._head

    def size(self, example: Example) -> int:
        """Chains begin in the answer; of the prompt only keys and values are computed."""
        return example.num_answer_tokens

    def lesson(self, batch: Batch) -> Lesson:
        """Three drafts from every position of the answers, each against the target's law."""
        width = 3 * self._head.config.target_hidden_size
        features, final = batch.states[..., :width], batch.states[..., width:]
        # A chain that starts at t drafts token t + 2: the first token after the newest one.
        first = batch.prompt_lens - 1
        num_starts = batch.lengths - 2 - first
        offsets = torch.arange(int(num_starts.max()))
        starts = (first.unsqueeze(1) + offsets).clamp(max=features.shape[1] - 1)
        valid = offsets < num_starts.unsqueeze(1)
        drafted = batch.tokens.gather(1, (starts + 2).clamp(max=batch.tokens.shape[1] - 1))
        # Where the text leaves the draft vocabulary no chain can follow it.
        valid &= self._head.t2d[drafted]
        temperatures = loss_temperatures(batch.temperatures).unsqueeze(1).expand(valid.shape)
        taught = final.gather(
            1,
            (starts + 1).clamp(max=final.shape[1] - 1).unsqueeze(2).expand(-1, -1, final.shape[2]),
        )
        teacher = torch.zeros(*valid.shape, self._columns.shape[0])
        teacher[valid] = target_log_probs(taught[valid], self._teacher_rows, temperatures[valid])
        embedded = self._teacher.embedding[_shifted(batch.tokens, features.shape[1] + _STEPS)]
        total = torch.zeros(())
        weights, acceptance = 0.0, []
        outputs = unroll(self._head, embedded, features, starts, self._teacher.rotary, _STEPS)
        num_starts_max = valid.shape[1]
        for step, out in enumerate(outputs):
            # The draft of step j at start t is the draft of step 0 at start t + j.
            kept = valid[:, step:]
            if not kept.any():
                acceptance.append(0.0)
                continue
            logits = self._head.logits(out[:, : num_starts_max - step][kept])
            loss, accepted = distillation_loss(
                logits / temperatures[:, step:][kept].unsqueeze(1), teacher[:, step:][kept]
            )
            weight = _STEP_DECAY**step
            total = total + weight * loss
            weights += weight
            acceptance.append(float(accepted))
        return Lesson(total / max(weights, 1.0), tuple(acceptance), int(valid.sum()))

    def profile(self, trajectory: Trajectory, max_drafts: int, max_len: int) -> StartProfile:
        """As in `Student`."""
        steps = forced_logits(
            self._head, self._teacher.embedding, self._teacher.rotary, trajectory, max_drafts
        )
        return profile_steps(
            steps, self._columns, trajectory, [None], max_drafts=max_drafts, max_len=max_len
        )[0]


def new_head(config: Eagle3Config, teacher: Teacher, columns: Tensor) -> Eagle3Head:
    """A head that starts from the target's last layer.

    Args:
        config: Of the target's widths.
        teacher: The target.
        columns: [draft vocab] int64, ascending target ids.
    """
    head = Eagle3Head(config)
    last = teacher.layer(teacher.config.num_layers - 1)
    hidden = config.decoder.hidden_size
    layer = head.midlayer
    with torch.no_grad():
        head.d2t.copy_(columns - torch.arange(columns.shape[0]))
        head.t2d.zero_()
        head.t2d[columns] = True
        for name in "qkv":
            projection = getattr(layer.self_attn, f"{name}_proj").weight
            nn.init.normal_(projection, std=_INIT_STD)
            projection[:, hidden:] = last[f"self_attn.{name}_proj.weight"]
        layer.self_attn.o_proj.weight.copy_(last["self_attn.o_proj.weight"])
        for part in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, part).weight.copy_(last[f"mlp.{part}.weight"])
        layer.hidden_norm.weight.copy_(last["input_layernorm.weight"])
        layer.post_attention_layernorm.weight.copy_(last["post_attention_layernorm.weight"])
        # The third state alone at first: it is what the last layers work on.
        nn.init.normal_(head.fc.weight, std=_INIT_STD)
        head.fc.weight[:, 2 * hidden :] += torch.eye(hidden)
        # Flatter than the target's: at first the head is confident of the wrong token.
        head.norm.weight.copy_(teacher.weights["model.norm.weight"] * _INIT_NORM)
        head.lm_head.weight.copy_(teacher.output_rows[columns])
    return head


def _shifted(tokens: Tensor, length: int) -> Tensor:
    """[B, L] -> [B, length], the token after each position; zeros beyond the end."""
    padded = torch.zeros(tokens.shape[0], length, dtype=tokens.dtype)
    count = min(length, tokens.shape[1] - 1)
    padded[:, :count] = tokens[:, 1 : count + 1]
    return padded

"""What drafters take from the target while they learn: embedding, output rows, distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.safetensors_reader import EMBEDDING, OUTPUT_HEAD
from engine.kernels.rotary import RotaryTables
from engine.training.corpus import Example

GREEDY_TEMPERATURE = 0.5
"""Stand-in for 0 in the loss: sharp, but with a gradient for more than one token."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target as far as training needs it: no layer of it runs.

    Attributes:
        config: Its configuration.
        weights: Its tensors by Hugging Face name, float32.
        rotary: Tables for the longest text.
    """

    config: ModelConfig
    weights: Mapping[str, Tensor]
    rotary: RotaryTables

    @classmethod
    def from_weights(
        cls, config: ModelConfig, weights: Mapping[str, Tensor], max_len: int
    ) -> Teacher:
        """Bring the tensors to float32."""
        tables = RotaryTables.build(config, max_len, torch.float32, torch.device("cpu"))
        return cls(config, {name: tensor.float() for name, tensor in weights.items()}, tables)

    @property
    def embedding(self) -> Tensor:
        """[vocab, hidden]."""
        return self.weights[EMBEDDING]

    @property
    def output_rows(self) -> Tensor:
        """[vocab, hidden] of the output head."""
        tied = self.config.tie_word_embeddings
        return self.embedding if tied else self.weights[OUTPUT_HEAD]

    def layer(self, index: int) -> dict[str, Tensor]:
        """One layer's tensors by their names within the layer."""
        prefix = f"model.layers.{index}."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.weights.items()
            if name.startswith(prefix)
        }


def loss_temperatures(temperatures: Tensor) -> Tensor:
    """The temperature of the law that a draft will be verified against, never 0."""
    return temperatures.clamp(min=GREEDY_TEMPERATURE)


def target_log_probs(final_states: Tensor, rows: Tensor, temperatures: Tensor) -> Tensor:
    """The target's distribution over some of its vocabulary, normalised over that.

    Args:
        final_states: [N, hidden], after the final norm.
        rows: [columns, hidden] of the output head.
        temperatures: [N].

    Returns:
        [N, columns].
    """
    # Never in bfloat16: the target's own law is what everything is held against.
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return ((final_states @ rows.T) / temperatures.unsqueeze(1)).log_softmax(dim=-1)


def frequent_tokens(
    examples: Iterable[Example], num_tokens: int, vocab_size: int, always: Sequence[int]
) -> Tensor:
    """The draft vocabulary: what answers are made of, then what prompts are, then low ids.

    Args:
        examples: The training data.
        num_tokens: Size, at least the number of `always`.
        vocab_size: Of the target.
        always: Ids that must be in, such as the end tokens.

    Returns:
        [num_tokens] int64, ascending.
    """
    answers: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    for example in examples:
        prompts.update(example.tokens[: example.prompt_len].tolist())
        answers.update(example.tokens[example.prompt_len :].tolist())
    ranked = [
        *always,
        *(token for token, _ in answers.most_common()),
        *(token for token, _ in prompts.most_common()),
        *range(vocab_size),
    ]
    chosen = list(dict.fromkeys(ranked))[:num_tokens]
    return torch.tensor(sorted(chosen))

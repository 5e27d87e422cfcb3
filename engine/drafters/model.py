"""Drafting with a language model: an independent draft, or the target's own first layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.drafters.base import DrafterSnapshot, Proposal
from engine.drafters.draw import DraftProbs, draft_temperatures, draw_step
from engine.kv_cache import KvCache, KvSnapshot
from engine.layout import make_layout
from engine.model import Transformer
from engine.request import Sequence

_CHUNK = 512  # tokens; bounds the attention mask and the logits of a long text


class ModelDrafter:
    """An autoregressive drafter with its own keys and values.

    It catches up lazily: tokens emitted since its last forward pass (the bonus token after a full
    acceptance, or a stretch of rounds without drafting) are processed together with the newest
    token at the next proposal, so idle rounds cost nothing.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        model: Transformer,
        cache: KvCache,
        *,
        target_vocab_size: int,
        shared_vocab_size: int,
        num_weight_bytes: int,
    ) -> None:
        """Wrap a draft model.

        Args:
            name: Name in configurations and tables.
            model: The draft; its vocabulary may be padded differently from the target's.
            cache: Memory for the engine's slots.
            target_vocab_size: Columns of the target's logits.
            shared_vocab_size: Ids that mean the same token in both; only these are drafted.
            num_weight_bytes: Bytes of weights that only this drafter needs.
        """
        self.name = name
        self.model = model
        self.cache = cache
        self._target_vocab_size = target_vocab_size
        self._shared_vocab_size = shared_vocab_size
        self._num_weight_bytes = num_weight_bytes
        self._probs = DraftProbs(target_vocab_size, model.device)

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Process all tokens but the newest."""
        self._take_in(slot, sequence)

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Copy out the slot's keys and values."""
        return DrafterSnapshot(self.cache.snapshot(slot))

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Fill a slot from a snapshot of the same sequence, made at this length or later."""
        if snapshot is None:
            self._take_in(slot, sequence)
        else:
            # After a full acceptance the cache lacks the last draft token until the next proposal.
            length = min(snapshot.kv.num_tokens, len(sequence.tokens) - 1)
            self.cache.restore(slot, snapshot.kv, length)

    def propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        """Draft one token at a time; rows whose limit is reached sit out."""
        tokens: list[list[int]] = [[] for _ in slots]
        temperatures = draft_temperatures(sequences, draft_temperature)
        probs = self._probs.of_round(temperatures, limits)
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        pending = {row: sequences[row].tokens[self.cache.lengths[slots[row]] :] for row in rows}
        step = 0
        while rows:
            starts = [len(sequences[row].tokens) + step - len(pending[row]) for row in rows]
            logits = self._forward(
                [slots[row] for row in rows], [pending[row] for row in rows], starts
            )
            is_whole = len(rows) == len(slots)
            out = None
            if probs is not None:
                out = probs[:, step] if is_whole else torch.empty_like(logits)
            drawn = draw_step(
                logits,
                [sequences[row] for row in rows],
                [temperatures[row] for row in rows],
                step,
                out,
            )
            if probs is not None and out is not None and not is_whole:
                probs[rows, step] = out
            for row, token in zip(rows, drawn, strict=True):
                tokens[row].append(token)
                pending[row] = [token]
            step += 1
            rows = [row for row in rows if limits[row] > step]
        for slot, sequence, drafted in zip(slots, sequences, tokens, strict=True):
            if drafted:  # the last draft token is never processed
                self._processed(slot, len(sequence.tokens) + len(drafted) - 1)
        return Proposal(tokens, probs)

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Keep what was computed for tokens that stand; the next proposal computes the rest."""
        computed = self.cache.lengths[slot]
        self.cache.lengths[slot] = min(computed, len(sequence.tokens) - 1)

    @torch.inference_mode()
    def forced_blocks(
        self,
        prompt_tokens: tuple[int, ...],
        output_tokens: tuple[int, ...],
        target_kv: KvSnapshot | None = None,
    ) -> Iterator[Tensor]:
        """Logits for every output token but the first, given the true tokens before it.

        Args:
            prompt_tokens: The prompt.
            output_tokens: At least two tokens.
            target_kv: The target's keys and values of at least the prompt, for drafters that
                share them.

        Returns:
            Blocks [n, target vocab] float32, in all len(output_tokens) - 1 rows; long answers are
            never held as a whole. Slot 0 of the cache then holds these tokens, ready for
            `snapshot`.
        """
        tokens = [*prompt_tokens, *output_tokens[:-1]]
        first_wanted = len(prompt_tokens)
        for start in range(self._share_prompt(first_wanted, target_kv), len(tokens), _CHUNK):
            part = tokens[start : start + _CHUNK]
            layout = make_layout([0], [start], [len(part)], device=self.model.device)
            hidden = self.model.forward(self._readable(part), layout, self.cache)
            self._processed(0, start + len(part))
            if start + len(part) > first_wanted:
                hidden = hidden[max(0, first_wanted - start) :]
                yield self._on_target_vocabulary(self.model.logits(hidden))

    def teacher_forced_logits(
        self,
        prompt_tokens: tuple[int, ...],
        output_tokens: tuple[int, ...],
        target_kv: KvSnapshot | None = None,
    ) -> Tensor:
        """[len(output_tokens) - 1, target vocab], the blocks of `forced_blocks` in one."""
        return torch.cat(list(self.forced_blocks(prompt_tokens, output_tokens, target_kv)))

    @property
    def num_bytes(self) -> int:
        """Weights and cache."""
        return self._num_weight_bytes + 2 * self.cache.keys.numel() * self.cache.keys.itemsize

    def _share_prompt(self, num_tokens: int, target_kv: KvSnapshot | None) -> int:
        """Tokens of the prompt that need no processing: none, this drafter has its own keys."""
        return 0

    def _processed(self, slot: int, length: int) -> None:
        """Note that the cache holds the first `length` tokens, drafts included."""
        self.cache.lengths[slot] = length

    def _take_in(self, slot: int, sequence: Sequence) -> None:
        self.cache.lengths[slot] = 0
        self._forward([slot], [sequence.tokens[:-1]], [0])
        self.cache.lengths[slot] = len(sequence.tokens) - 1

    def _forward(self, slots: list[int], tokens: list[list[int]], starts: list[int]) -> Tensor:
        """Process new tokens of each row; logits [B, vocab] after each row's last one."""
        model = self.model
        layout = make_layout(slots, starts, [len(part) for part in tokens], device=model.device)
        flat = self._readable([token for part in tokens for token in part])
        hidden = model.forward(flat, layout, self.cache)
        return self._on_target_vocabulary(model.logits(hidden[layout.row_ends - 1]))

    def _readable(self, tokens: list[int]) -> Tensor:
        """[T] int64; ids beyond the draft's embedding become its last: any draft is lossless."""
        ids = torch.tensor(tokens, device=self.model.device)
        return ids.clamp_max_(self.model.config.vocab_size - 1)

    def _on_target_vocabulary(self, logits: Tensor) -> Tensor:
        """[B, draft vocab] -> [B, target vocab]; ids that are not shared get -inf."""
        shared, wanted = self._shared_vocab_size, self._target_vocab_size
        if logits.shape[1] == shared == wanted:
            return logits
        fitted = logits.new_full((logits.shape[0], wanted), float("-inf"))
        fitted[:, :shared] = logits[:, :shared]
        return fitted


class LayerSkipDrafter(ModelDrafter):
    """The target's first layers with its final norm and head: no weights of its own.

    It works in the target's own cache: the keys and values of the first layers are the same for
    both, so it never has to catch up, and the verify pass rewrites what it wrote.

    Source: Zhang et al. 2023 (Draft & Verify), with a prefix of the layers.
    """

    def __init__(self, name: str, target: Transformer, target_cache: KvCache, num_layers: int):
        """Cut the target after `num_layers`."""
        vocab_size = target.config.vocab_size
        super().__init__(
            name,
            target.first_layers(num_layers),
            target_cache.first_layers(num_layers),
            target_vocab_size=vocab_size,
            shared_vocab_size=vocab_size,
            num_weight_bytes=0,
        )

    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """The target's prefill has done it."""

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """The target's snapshot holds everything."""
        return None

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """The target's snapshot holds everything."""

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """The engine commits the shared cache."""

    @property
    def num_bytes(self) -> int:
        """Everything is shared."""
        return 0

    def _share_prompt(self, num_tokens: int, target_kv: KvSnapshot | None) -> int:
        """Take over the target's keys and values of the first layers."""
        if target_kv is None:
            return 0
        depth = self.cache.keys.shape[0]
        for own, theirs in (
            (self.cache.keys, target_kv.keys),
            (self.cache.values, target_kv.values),
        ):
            own[:, 0, :, :num_tokens] = theirs[:depth, :, :num_tokens]
        return num_tokens

    def _processed(self, slot: int, length: int) -> None:
        """Lengths belong to the target."""

"""Drafting with an EAGLE-3 head, as a chain."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.drafters.base import DrafterSnapshot, Proposal
from engine.drafters.draw import DraftProbs, draft_temperatures, draw_step
from engine.drafters.eagle3.forced import forced_logits
from engine.drafters.eagle3.head import Eagle3Head
from engine.drafters.eagle3.unroll import unroll
from engine.errors import EngineError
from engine.kernels.attention import prepare_attention
from engine.kernels.backend import Backend
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.record import Trajectory
from engine.request import Sequence


class Eagle3Drafter:
    """A chain drafter that reads the target's hidden states.

    Position t of its cache holds the pair (states of token t, embedding of token t + 1). After a
    verify pass the pairs of the tokens that stand are computed from the target's own states, in
    place of those that drafting made from the head's approximations. The next proposal does it,
    so rounds that do not draft only store states.

    Source: Li et al. 2025 (arXiv 2503.01840).
    """

    def __init__(
        self,
        name: str,
        head: Eagle3Head,
        embedding: Tensor,
        cache: KvCache,
        *,
        backend: Backend,
        num_weight_bytes: int,
    ) -> None:
        """Wrap a head.

        Args:
            name: Name in configurations and tables.
            head: In the target's dtype and on its device.
            embedding: [vocab, hidden], usually the target's own.
            cache: Memory of one layer for the engine's slots.
            backend: Of the attention.
            num_weight_bytes: Bytes of weights that only this drafter needs.
        """
        config = head.config
        self.name = name
        self.feature_layers: tuple[int, ...] = config.feature_layers
        self.head = head
        self.cache = cache
        self.columns = head.target_ids
        self._embedding = embedding
        self._backend = backend
        self._num_weight_bytes = num_weight_bytes
        self._rotary = RotaryTables.build(
            config.decoder, cache.max_len, embedding.dtype, embedding.device
        )
        self._probs = DraftProbs(embedding.shape[0], embedding.device)
        self._num_states = [0] * cache.num_slots
        width = len(config.feature_layers) * config.target_hidden_size
        self._states = torch.zeros(
            cache.num_slots, cache.max_len, width, dtype=embedding.dtype, device=embedding.device
        )

    @torch.inference_mode()
    def admit(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Compute the pairs of the prompt; the newest one waits for the first proposal."""
        count = len(sequence.tokens) - 1
        self._store(slot, count, features)
        self.cache.lengths[slot] = 0
        if count > 1:
            self._take_in([slot], [sequence.tokens[:count]])
            self.cache.lengths[slot] = count - 1

    def ingest(self, slot: int, sequence: Sequence, features: Tensor) -> None:
        """Store the target's states; the next proposal computes the pairs."""
        self._store(slot, len(sequence.tokens) - 1, features)

    @torch.inference_mode()
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
        out = self._take_in([slots[row] for row in rows], [sequences[row].tokens for row in rows])
        for row in rows:
            self.cache.lengths[slots[row]] = len(sequences[row].tokens) - 1
        step = 0
        while True:
            is_whole = len(rows) == len(slots)
            drawn_from = None
            if probs is not None:
                drawn_from = probs[:, step] if is_whole else probs[rows, step]
            drawn = draw_step(
                self.head.logits(out).float(),
                [sequences[row] for row in rows],
                [temperatures[row] for row in rows],
                step,
                drawn_from,
                self.columns,
            )
            if probs is not None and drawn_from is not None and not is_whole:
                probs[rows, step] = drawn_from
            for row, token in zip(rows, self.columns[drawn].tolist(), strict=True):
                tokens[row].append(token)
            step += 1
            going_on = [index for index, row in enumerate(rows) if limits[row] > step]
            if not going_on:
                return Proposal(tokens, probs)
            rows = [rows[index] for index in going_on]
            out = self._layer(
                out if len(going_on) == out.shape[0] else out[going_on],
                [[tokens[row][-1]] for row in rows],
                [slots[row] for row in rows],
                [len(sequences[row].tokens) - 2 + step for row in rows],
            )

    def snapshot(self, slot: int) -> DrafterSnapshot | None:
        """Copy out keys, values and the target's states."""
        # More states than keys: the newest pairs wait for the next proposal.
        states = self._states[slot, : self._num_states[slot]].clone()
        return DrafterSnapshot(self.cache.snapshot(slot), states)

    def restore(self, slot: int, sequence: Sequence, snapshot: DrafterSnapshot | None) -> None:
        """Fill a slot from a snapshot of the same sequence, made at this length or later.

        Raises:
            EngineError: There is no snapshot: the target's states cannot be made up.
        """
        count = len(sequence.tokens) - 1
        if snapshot is None or snapshot.inputs is None or snapshot.inputs.shape[0] < count:
            raise EngineError(f"{self.name}: a sequence cannot be resumed without its states")
        self._store(slot, count, snapshot.inputs[:count])
        # The newest pair is always computed by the next proposal, which needs its output.
        self.cache.restore(slot, snapshot.kv, min(snapshot.kv.num_tokens, count - 1))

    def forced_logits(self, trajectory: Trajectory, num_steps: int) -> Iterator[Tensor]:
        """Logits along a recorded answer; see `engine.drafters.eagle3.forced`."""
        return forced_logits(self.head, self._embedding, self._rotary, trajectory, num_steps)

    @torch.inference_mode()
    def first_drafts(self, tokens: Seq[int], features: Tensor) -> Tensor:
        """The greedy first draft after every token but the first.

        Args:
            tokens: n of them.
            features: [n, width], the target's states at each.

        Returns:
            [n - 1] int64, ids of the target; entry i follows token i + 1.
        """
        count = len(tokens) - 1
        ids = torch.tensor([*tokens[1:], 0], device=features.device)
        starts = torch.arange(count, device=features.device).unsqueeze(0)
        embedded = self._embedding[ids].unsqueeze(0)
        steps = unroll(
            self.head, embedded, features[:count].unsqueeze(0), starts, self._rotary, num_steps=1
        )
        return self.columns[self.head.logits(next(steps)[0]).argmax(dim=-1)]

    @torch.inference_mode()
    def snapshot_of(self, trajectory: Trajectory) -> DrafterSnapshot:
        """The state after a recorded answer. Slot 0 is used."""
        tokens = [*trajectory.request.prompt_tokens, *trajectory.output_tokens]
        states = trajectory.features_of(self.feature_layers)
        count = len(tokens) - 1
        self._store(0, count, states)
        self.cache.lengths[0] = 0
        self._take_in([0], [tokens])
        self.cache.lengths[0] = count
        return DrafterSnapshot(self.cache.snapshot(0), states)

    @property
    def num_bytes(self) -> int:
        """Weights, cache and the target's states."""
        held = 2 * self.cache.keys.numel() * self.cache.keys.itemsize
        return self._num_weight_bytes + held + self._states.numel() * self._states.itemsize

    def _store(self, slot: int, end: int, states: Tensor) -> None:
        """Keep the target's states of the last tokens before `end`."""
        self._states[slot, end - states.shape[0] : end] = states
        self._num_states[slot] = end

    def _take_in(self, slots: list[int], tokens: list[list[int]]) -> Tensor:
        """Compute the pairs that are not in the cache yet.

        Args:
            slots: Slot of each row.
            tokens: All tokens of each row; the pair of the last but one is its newest.

        Returns:
            [B, hidden], the layer's output for the newest pair of each row.
        """
        starts = [self.cache.lengths[slot] for slot in slots]
        ends = [len(row) - 1 for row in tokens]
        states = [
            self._states[slot, start:end]
            for slot, start, end in zip(slots, starts, ends, strict=True)
        ]
        following = [row[start + 1 :] for row, start in zip(tokens, starts, strict=True)]
        return self._layer(self.head.fuse(torch.cat(states)), following, slots, starts)

    def _layer(
        self, feature: Tensor, tokens: list[list[int]], slots: list[int], starts: list[int]
    ) -> Tensor:
        """Run the layer over new pairs and write their keys and values.

        Args:
            feature: [T, hidden], fused states or the layer's own outputs, rows one after the other.
            tokens: The token after each pair's position.
            slots: Slot of each row.
            starts: Position of each row's first pair.

        Returns:
            [B, hidden], the output of each row's last pair, before the final norm.
        """
        device = feature.device
        layout = make_layout(slots, starts, [len(row) for row in tokens], device=device)
        ids = torch.tensor([token for row in tokens for token in row], device=device)
        joined, residual = self.head.attention_input(self._embedding[ids], feature)
        attention = self.head.midlayer.self_attn
        qkv = torch.cat(
            (attention.q_proj(joined), attention.k_proj(joined), attention.v_proj(joined)), dim=-1
        )
        attend = prepare_attention(
            self.head.config.decoder, layout, self._rotary, self.cache, self._backend
        )
        attended = attend(qkv, 0)
        ends = layout.row_ends - 1
        return self.head.after_attention(attended[ends], residual[ends])

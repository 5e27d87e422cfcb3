"""The engine: slots, prefill and decode rounds. The only module that wires the others together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import log

import torch
from torch import Tensor

from engine.drafters.base import Drafter, DrafterSnapshot, Proposal
from engine.errors import EngineError, RequestError
from engine.kv_cache import KvCache, KvSnapshot
from engine.layout import make_layout
from engine.model import Transformer
from engine.request import Request, Sequence
from engine.verify_batch import verify_batch
from policies.counters import SpecDecodeCounters
from policies.types import VerificationRule

_PREFILL_CHUNK = 512  # tokens; bounds the attention mask of a long prompt


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What a round did for one row.

    Attributes:
        slot: The row's slot.
        num_drafted: Draft tokens verified.
        num_accepted: Draft tokens of them that became output.
        num_emitted: Tokens the output grew by.
        log_probs: Log-probability of each emitted token under the target's processed
            distribution; empty unless recording.
    """

    slot: int
    num_drafted: int
    num_accepted: int
    num_emitted: int
    log_probs: tuple[float, ...] = ()


class Engine:
    """A target model with slots for `max_batch_size` requests and at most one drafter."""

    def __init__(
        self,
        target: Transformer,
        *,
        eos_token_ids: Iterable[int],
        max_batch_size: int,
        max_len: int,
    ) -> None:
        """Allocate the cache.

        Args:
            target: The model whose output law is kept.
            eos_token_ids: Ids that end an output.
            max_batch_size: Slots.
            max_len: Tokens a slot holds, at most what the model supports.
        """
        if max_len > target.max_len:
            raise EngineError(f"max_len = {max_len}: the model supports {target.max_len} positions")
        self.target = target
        self.eos_token_ids = frozenset(eos_token_ids)
        self.cache = KvCache.allocate(
            target.config, max_batch_size, max_len, target.dtype, target.device
        )
        self.drafter: Drafter | None = None
        self.sequences: dict[int, Sequence] = {}
        self.num_fallbacks = 0

    @property
    def max_len(self) -> int:
        """Tokens a slot holds."""
        return self.cache.max_len

    @property
    def _feature_layers(self) -> tuple[int, ...]:
        return () if self.drafter is None else self.drafter.feature_layers

    def load(self, drafter: Drafter | None) -> None:
        """Put a drafter in place of the current one; None unloads.

        Raises:
            EngineError: Requests are running.
        """
        if self.sequences:
            raise EngineError("the drafter can only be changed while no request is running")
        self.drafter = drafter

    def admit(self, slot: int, request: Request) -> Sequence:
        """Prefill a request and sample its first token.

        Raises:
            RequestError: The prompt is empty, has unknown ids or leaves no room for a token.
            EngineError: The slot is taken.
        """
        self._check(request)
        self._check_free(slot)
        sequence = Sequence(request, list(request.prompt_tokens))
        hidden, features = self._prefill(slot, request.prompt_tokens)
        tokens = self._sample(self.target.logits(hidden[-1:]), [sequence])
        sequence.append(tokens, self.eos_token_ids, self.max_len)
        if self.drafter is not None:
            self.drafter.admit(slot, sequence, features)
        self.sequences[slot] = sequence
        return sequence

    def resume(
        self, slot: int, sequence: Sequence, snapshot: KvSnapshot, drafted: DrafterSnapshot | None
    ) -> None:
        """Place a running sequence from snapshots instead of a prefill.

        Args:
            slot: A free slot.
            sequence: The state to go on from.
            snapshot: The target's keys and values of its tokens, newest excluded, or more.
            drafted: The drafter's snapshot of the same sequence, if it made one.

        Raises:
            EngineError: The slot is taken.
        """
        self._check_free(slot)
        self.cache.restore(slot, snapshot, len(sequence.tokens) - 1)
        if self.drafter is not None:
            self.drafter.restore(slot, sequence, drafted)
        self.sequences[slot] = sequence

    def release(self, slot: int) -> Sequence:
        """Free a slot and return its sequence."""
        return self.sequences.pop(slot)

    @torch.inference_mode()
    def round(
        self,
        num_speculative_tokens: int = 0,
        draft_temperature: float | None = None,
        *,
        rule: VerificationRule = VerificationRule.RATIO,
        record: bool = False,
    ) -> list[RowOutcome]:
        """One decode round for every running sequence: draft, verify, accept, commit.

        Args:
            num_speculative_tokens: K, at most; rows near their end draft less.
            draft_temperature: As in `Drafter.propose`.
            rule: How sampled requests accept drafts that were drawn from a distribution.
            record: Also return the log-probability of each emitted token.

        Returns:
            One outcome per running row, by ascending slot. Finished sequences stay in their slot
            until released, and are left alone.
        """
        slots = sorted(s for s, seq in self.sequences.items() if seq.finish_reason is None)
        if not slots:
            return []
        sequences = [self.sequences[slot] for slot in slots]
        proposal = self._propose(slots, sequences, num_speculative_tokens, draft_temperature)
        starts = [len(sequence.tokens) - 1 for sequence in sequences]
        inputs = [
            [sequence.tokens[-1], *draft]
            for sequence, draft in zip(sequences, proposal.tokens, strict=True)
        ]
        q_lens = [len(row) for row in inputs]
        layout = make_layout(slots, starts, q_lens, device=self.target.device)
        flat = torch.tensor([t for row in inputs for t in row], device=self.target.device)
        hidden, features = self.target.forward_with_features(
            flat, layout, self.cache, self._feature_layers
        )
        logits = self.target.logits(hidden)
        first_rows = list(accumulate(q_lens[:-1], initial=0))
        verdict, probs = verify_batch(logits, first_rows, sequences, proposal, rule)
        self.num_fallbacks += verdict.num_fallbacks
        outcomes = []
        for row, (slot, sequence) in enumerate(zip(slots, sequences, strict=True)):
            draft, accepted = proposal.tokens[row], verdict.num_accepted[row]
            emitted = [*draft[:accepted], verdict.next_tokens[row]]
            sequence.round_index += 1
            taken = sequence.append(emitted, self.eos_token_ids, self.max_len)
            self.cache.lengths[slot] = len(sequence.tokens) - 1
            if self.drafter is not None:
                first = first_rows[row]
                kept = features[first : first + taken] if self._feature_layers else features
                self.drafter.ingest(slot, sequence, kept)
            outcomes.append(
                RowOutcome(
                    slot,
                    len(draft),
                    min(accepted, taken),
                    taken,
                    tuple(map(log, probs[row][:taken])) if record else (),
                )
            )
        return outcomes

    def generate(
        self,
        requests: list[Request],
        *,
        batch_size: int,
        num_speculative_tokens: int = 0,
        draft_temperature: float | None = None,
        rule: VerificationRule = VerificationRule.RATIO,
        record: bool = False,
        on_round: Callable[[list[RowOutcome]], None] | None = None,
        on_finish: Callable[[int, Sequence], None] | None = None,
    ) -> tuple[list[Sequence], SpecDecodeCounters]:
        """Answer requests, keeping up to `batch_size` of them in flight.

        Args:
            requests: What to answer.
            batch_size: Rows in flight, at most the engine's slots.
            num_speculative_tokens: K.
            draft_temperature: As in `Drafter.propose`.
            rule: As in `round`.
            record: As in `round`.
            on_round: Called with the outcomes of every round.
            on_finish: Called with the slot and the finished sequence before the slot is freed.

        Returns:
            The finished sequences in the order of the requests, and the counters of all rounds.

        Raises:
            EngineError: Among others, `batch_size` is not between 1 and the engine's slots.
                After any error the slots are free again.
        """
        if not 1 <= batch_size <= self.cache.num_slots:
            raise EngineError(
                f"batch_size = {batch_size}: must be between 1 and {self.cache.num_slots}"
            )
        waiting = list(enumerate(requests))[::-1]
        running: dict[int, int] = {}
        finished: dict[int, Sequence] = {}
        counters = SpecDecodeCounters()
        try:
            while waiting or running:
                for slot in range(batch_size):
                    while slot not in running and waiting:
                        index, request = waiting.pop()
                        self.admit(slot, request)
                        running[slot] = index
                        self._retire(running, finished, on_finish)
                outcomes = self.round(
                    num_speculative_tokens, draft_temperature, rule=rule, record=record
                )
                if on_round is not None and outcomes:
                    on_round(outcomes)
                for outcome in outcomes:
                    counters = counters.add_round(
                        num_draft_tokens=outcome.num_drafted,
                        num_accepted_tokens=outcome.num_accepted,
                        num_emitted_tokens=outcome.num_emitted,
                    )
                self._retire(running, finished, on_finish)
        finally:
            for slot in running:
                self.release(slot)
        return [finished[index] for index in range(len(requests))], counters

    def _retire(
        self,
        running: dict[int, int],
        finished: dict[int, Sequence],
        on_finish: Callable[[int, Sequence], None] | None,
    ) -> None:
        for slot in list(running):
            sequence = self.sequences[slot]
            if sequence.finish_reason is not None:
                if on_finish is not None:
                    on_finish(slot, sequence)
                finished[running.pop(slot)] = self.release(slot)

    def _check(self, request: Request) -> None:
        prompt = request.prompt_tokens
        if not prompt:
            raise RequestError(f"request {request.request_id}: the prompt is empty")
        if len(prompt) > self.max_len:
            raise RequestError(
                f"request {request.request_id}: the prompt has {len(prompt)} tokens, "
                f"a slot holds {self.max_len}"
            )
        vocab_size = self.target.config.vocab_size
        if not all(0 <= token < vocab_size for token in prompt):
            raise RequestError(
                f"request {request.request_id}: a prompt token is outside 0..{vocab_size - 1}"
            )

    def _check_free(self, slot: int) -> None:
        if slot in self.sequences:
            raise EngineError(f"slot {slot} is taken")

    @torch.inference_mode()
    def _prefill(self, slot: int, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Process a prompt; final states [chunk, hidden] of its last chunk, features of all."""
        features = []
        for start in range(0, len(tokens), _PREFILL_CHUNK):
            chunk = tokens[start : start + _PREFILL_CHUNK]
            layout = make_layout([slot], [start], [len(chunk)], device=self.target.device)
            flat = torch.tensor(chunk, device=self.target.device)
            hidden, chunk_features = self.target.forward_with_features(
                flat, layout, self.cache, self._feature_layers
            )
            features.append(chunk_features)
        self.cache.lengths[slot] = len(tokens)
        return hidden, torch.cat(features)

    def _propose(
        self,
        slots: list[int],
        sequences: list[Sequence],
        num_speculative_tokens: int,
        draft_temperature: float | None,
    ) -> Proposal:
        if num_speculative_tokens == 0:
            return Proposal([[] for _ in slots], None)
        if num_speculative_tokens < 0:
            raise EngineError(f"K = {num_speculative_tokens}: must be 0 or more")
        if self.drafter is None:
            raise EngineError(f"K = {num_speculative_tokens}: no drafter is loaded")
        limits = [min(num_speculative_tokens, seq.max_drafts(self.max_len)) for seq in sequences]
        if not any(limits):
            return Proposal([[] for _ in slots], None)
        return self.drafter.propose(slots, sequences, limits, draft_temperature)

    def _sample(self, logits: Tensor, sequences: list[Sequence]) -> list[int]:
        """Plain sampling after prefill: one row per sequence."""
        nothing = Proposal([[] for _ in sequences], None)
        return verify_batch(logits, list(range(len(sequences))), sequences, nothing)[0].next_tokens

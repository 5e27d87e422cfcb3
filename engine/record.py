"""Record the target's answers once; every drafter and every K is then scored on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafters.recorder import StateRecorder
from engine.engine import Engine, RowOutcome
from engine.errors import EngineError
from engine.kv_cache import KvSnapshot
from engine.request import FinishReason, Request, Sequence


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """States of the target along one text.

    Attributes:
        layers: Ascending, as `Transformer.forward_with_features` counts them.
        states: [num_tokens, len(layers) * hidden], newest token excluded.
    """

    layers: tuple[int, ...]
    states: Tensor

    def select(self, layers: tuple[int, ...]) -> Tensor:
        """The states of some of the layers, side by side.

        Raises:
            EngineError: One of them was not kept.
        """
        if layers == self.layers:
            return self.states
        missing = sorted(set(layers) - set(self.layers))
        if missing:
            raise EngineError(f"the states of layer {missing[0]} were not recorded")
        parts = self.states.chunk(len(self.layers), dim=-1)
        return torch.cat([parts[self.layers.index(layer)] for layer in layers], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One recorded answer.

    Attributes:
        request: The request it answers.
        output_tokens: y; the first comes from prefill, the others from decode rounds.
        log_probs: log p(y_i) under the processed distribution, for every output token but the
            first; 0 for greedy requests.
        finish_reason: Why it ended.
        snapshot: The target's keys and values of prompt and output (newest token excluded), so
            that a measurement can go on from any point without a prefill.
        features: The target's states that drafters read, or None when none was asked for.
    """

    request: Request
    output_tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    snapshot: KvSnapshot
    features: TargetFeatures | None = None

    @property
    def num_decoded(self) -> int:
        """Output tokens that decode rounds emitted: all but the first."""
        return len(self.output_tokens) - 1

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        features = self.features.states if self.features is not None else torch.empty(0)
        return self.snapshot.num_bytes + features.numel() * features.element_size()

    def features_of(self, layers: tuple[int, ...]) -> Tensor:
        """[num_tokens, len(layers) * hidden], the target's states that a drafter reads.

        Raises:
            EngineError: They were not recorded.
        """
        if self.features is None:
            raise EngineError("no states of the target were recorded")
        return self.features.select(layers)

    def resume_at(self, num_output_tokens: int, request: Request | None = None) -> Sequence:
        """The state after the first `num_output_tokens` output tokens.

        Args:
            num_output_tokens: From 1 to `num_decoded`.
            request: Replaces the recorded request, for example with another seed.
        """
        tokens = [*self.request.prompt_tokens, *self.output_tokens[:num_output_tokens]]
        return Sequence(request or self.request, tokens)


def logged_trajectory(
    request: Request,
    output_tokens: tuple[int, ...],
    log_probs: tuple[float, ...],
    finish_reason: FinishReason,
) -> Trajectory:
    """An answer of another engine: its tokens, and nothing that only a pass of the target gives.

    Args:
        request: What was asked there.
        output_tokens: What was answered, at least one token.
        log_probs: As in `Trajectory`: after processing, of every token but the first.
        finish_reason: Why it ended.

    Raises:
        EngineError: The counts do not fit.
    """
    if len(log_probs) != len(output_tokens) - 1:
        raise EngineError(
            f"request {request.request_id}: {len(output_tokens)} output tokens and "
            f"{len(log_probs)} log-probabilities; every token but the first has one"
        )
    nothing = torch.empty(0, 0, 0, 0)
    return Trajectory(
        request=request,
        output_tokens=output_tokens,
        log_probs=log_probs,
        finish_reason=finish_reason,
        snapshot=KvSnapshot(nothing, nothing),
    )


def record(
    engine: Engine,
    requests: list[Request],
    *,
    batch_size: int,
    feature_layers: tuple[int, ...] = (),
    on_tokens: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """Answer requests without speculation and keep what replay needs.

    Args:
        engine: Its drafter is unloaded.
        requests: What to answer.
        batch_size: Requests in flight.
        feature_layers: States of the target to keep, ascending.
        on_tokens: Told the number of tokens of each round, for progress.

    Returns:
        Trajectories in the order of the requests.
    """
    log_probs: dict[str, list[float]] = {request.request_id: [] for request in requests}
    snapshots: dict[str, KvSnapshot] = {}

    def on_round(outcomes: list[RowOutcome]) -> None:
        for outcome in outcomes:
            sequence = engine.sequences[outcome.slot]
            log_probs[sequence.request.request_id].extend(outcome.log_probs)
        if on_tokens is not None:
            on_tokens(sum(outcome.num_emitted for outcome in outcomes))

    recorder = StateRecorder(feature_layers)
    features: dict[str, TargetFeatures] = {}

    def on_finish(slot: int, sequence: Sequence) -> None:
        request_id = sequence.request.request_id
        snapshots[request_id] = engine.cache.snapshot(slot)
        if feature_layers:
            features[request_id] = TargetFeatures(feature_layers, recorder.take(slot))

    engine.load(recorder if feature_layers else None)
    sequences, _ = engine.generate(
        requests, batch_size=batch_size, record=True, on_round=on_round, on_finish=on_finish
    )
    engine.load(None)
    trajectories = []
    for sequence in sequences:
        assert sequence.finish_reason is not None
        request_id = sequence.request.request_id
        trajectories.append(
            Trajectory(
                request=sequence.request,
                output_tokens=tuple(sequence.output_tokens),
                log_probs=tuple(log_probs[request_id]),
                finish_reason=sequence.finish_reason,
                snapshot=snapshots[request_id],
                features=features.get(request_id),
            )
        )
    return trajectories

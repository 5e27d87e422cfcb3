"""Record the target's answers once; every drafter and every K is then scored on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.engine import Engine, RowOutcome
from engine.kv_cache import KvSnapshot
from engine.request import FinishReason, Request, Sequence


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
    """

    request: Request
    output_tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    snapshot: KvSnapshot

    @property
    def num_decoded(self) -> int:
        """Output tokens that decode rounds emitted: all but the first."""
        return len(self.output_tokens) - 1

    def resume_at(self, num_output_tokens: int, request: Request | None = None) -> Sequence:
        """The state after the first `num_output_tokens` output tokens.

        Args:
            num_output_tokens: From 1 to `num_decoded`.
            request: Replaces the recorded request, for example with another seed.
        """
        tokens = [*self.request.prompt_tokens, *self.output_tokens[:num_output_tokens]]
        return Sequence(request or self.request, tokens)


def record(
    engine: Engine,
    requests: list[Request],
    *,
    batch_size: int,
    on_tokens: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """Answer requests without speculation and keep what replay needs.

    Args:
        engine: No drafter is used, loaded or not.
        requests: What to answer.
        batch_size: Requests in flight.
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

    def on_finish(slot: int, sequence: Sequence) -> None:
        snapshots[sequence.request.request_id] = engine.cache.snapshot(slot)

    sequences, _ = engine.generate(
        requests, batch_size=batch_size, record=True, on_round=on_round, on_finish=on_finish
    )
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
            )
        )
    return trajectories

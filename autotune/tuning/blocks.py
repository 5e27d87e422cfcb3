"""Measured blocks on their way to the ledger and back into estimates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from autotune.tuning.paired_block import Bench, PairedBlock
from engine.errors import EngineError
from policies.estimate import comparable, log_ratio, paired_estimate
from policies.types import Block, PairedEstimate, SpeculativeConfig
from store.records import FailureRecord, MeasurementRecord, ProposedBy, Stage
from store.repository import Store

_RETRY_SHARE = 1.0  # disturbed blocks are measured again, up to this share of the blocks asked for

Arm = tuple[int, SpeculativeConfig]
"""A batch size and a configuration."""


class Ledger:
    """Measures blocks of one run and keeps them, in the store and at hand.

    Attributes:
        num_disturbed: Blocks that decide nothing.
        failed: Drafters with an arm that failed: nothing of theirs may be published.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        bench: Bench,
        request_std_error: Callable[[SpeculativeConfig], float],
    ) -> None:
        """Start with nothing measured.

        Args:
            store: Takes every block as soon as it ends.
            run_id: The run that they belong to.
            bench: Measures.
            request_std_error: Standard error of an arm's log gain from the choice of requests.
        """
        self._store = store
        self._run_id = run_id
        self._bench = bench
        self._request_std_error = request_std_error
        self._blocks: dict[tuple[Stage, Arm], list[Block]] = defaultdict(list)
        self._next_index: dict[tuple[Stage, Arm], int] = defaultdict(int)
        self.num_disturbed = 0
        self.failed: set[str] = set()

    def measure(
        self,
        arm: Arm,
        num_blocks: int,
        *,
        stage: Stage,
        proposed_by: ProposedBy,
        trial_number: int | None = None,
        on_block: Callable[[], None] = lambda: None,
    ) -> bool:
        """Measure an arm; every block is stored as soon as it ends.

        A block that others disturbed is stored but decides nothing, and is measured again within
        limits.

        Returns:
            False when the arm failed; the reason is stored.
        """
        batch_size, config = arm
        remaining, retries = num_blocks, int(num_blocks * _RETRY_SHARE)
        while remaining:
            index = self._next_index[stage, arm]
            self._next_index[stage, arm] += 1
            try:
                block = self._bench.measure(config, batch_size, stage, index)
            except EngineError as error:
                self._fail(arm, str(error))
                return False
            self._store.add_measurement(
                self._record(block, arm, stage, proposed_by, trial_number, index)
            )
            on_block()
            self.num_disturbed += block.disturbed
            if block.disturbed and retries:
                retries -= 1
                continue
            if not block.disturbed:
                self._blocks[stage, arm].append(block.block())
            remaining -= 1
        return True

    def arms(self, stage: Stage) -> Iterable[Arm]:
        """Arms with at least one block of a stage."""
        return [arm for measured, arm in self._blocks if measured == stage]

    def estimate(self, arm: Arm, stage: Stage) -> PairedEstimate | None:
        """Pooled estimate; None with fewer than two undisturbed blocks.

        Blocks draw from the same recorded answers, so they cannot see how much depends on the
        choice of requests: that part is the jackknife of the replayed tokens per round.
        """
        blocks = self._blocks.get((stage, arm), [])
        if len(blocks) < 2:
            return None
        estimate = paired_estimate(blocks, self._request_std_error(arm[1]))
        # What was explored was picked by its results: no bound of it holds, so none is made.
        return replace(estimate, log_ratios=()) if stage == "explore" else estimate

    def log_ratios(self, arm: Arm, stage: Stage) -> list[float]:
        """Of every undisturbed block, in the order of measuring."""
        blocks = self._blocks.get((stage, arm), [])
        return [log_ratio(block) for block in comparable(blocks, self._request_std_error(arm[1]))]

    def _fail(self, arm: Arm, reason: str) -> None:
        self.failed.add(arm[1].drafter)
        self._store.add_failure(
            FailureRecord(
                run_id=self._run_id,
                batch_size=arm[0],
                drafter=arm[1].drafter,
                num_speculative_tokens=arm[1].num_speculative_tokens,
                draft_temperature=arm[1].draft_temperature,
                reason=reason,
                created_at=datetime.now(UTC),
            )
        )

    def _record(
        self,
        block: PairedBlock,
        arm: Arm,
        stage: Stage,
        proposed_by: ProposedBy,
        trial_number: int | None,
        index: int,
    ) -> MeasurementRecord:
        batch_size, config = arm
        return MeasurementRecord(
            run_id=self._run_id,
            batch_size=batch_size,
            drafter=config.drafter,
            num_speculative_tokens=config.num_speculative_tokens,
            draft_temperature=config.draft_temperature,
            stage=stage,
            trial_number=trial_number,
            proposed_by=proposed_by,
            block_index=index,
            baseline_tokens=block.baseline.num_tokens,
            baseline_s=block.baseline.seconds,
            candidate_tokens=block.candidate.num_tokens,
            candidate_s=block.candidate.seconds,
            expected_tokens=block.expected_tokens,
            num_rounds=block.candidate.num_rounds,
            num_drafts=block.candidate.num_drafts,
            num_draft_tokens=block.candidate.num_draft_tokens,
            num_accepted_tokens=block.candidate.num_accepted_tokens,
            created_at=datetime.now(UTC),
            disturbed=block.disturbed,
        )

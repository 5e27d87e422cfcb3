"""The search: explore what could be best, measure it on fresh blocks, decide. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

from autotune.tuning.belief import Belief, Cell
from autotune.tuning.blocks import Arm, Ledger
from autotune.tuning.explore import Choice, Explorer, Kind
from autotune.tuning.seeds import derive_seed
from autotune.tuning.validate import Purse, Validator
from policies.decide import FINALISTS, decide
from policies.types import (
    DEFAULT_MARGINS,
    OFF,
    OFF_DRAFTER,
    CellEvidence,
    Decision,
    Envelope,
    Margins,
    SpeculativeConfig,
)
from store.records import ProposedBy

_BETTER = 0.01  # log gain that makes another K worth fresh blocks


class Predictor(Protocol):
    """Predicts decode rates without measuring them: replayed acceptance over step times."""

    def tokens_per_s(self, config: SpeculativeConfig, batch_size: int) -> float:
        """Output tokens per second of an arm."""
        ...

    def off_tokens_per_s(self, batch_size: int) -> float:
        """Output tokens per second without speculation."""
        ...


class Study(Protocol):
    """Takes notes of the arms that are measured; decisions do not rest on it."""

    def ask(self, cell: Cell) -> int:
        """A new trial; returns its number."""
        ...

    def tell(self, cell: Cell, number: int, log_gain: float | None) -> None:
        """Its result; None if it failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may spend.

    Attributes:
        trials: Trials of the exploration, over all batch sizes.
        explore_blocks: Blocks of a trial.
        validate_blocks: Fresh blocks for each batch size, more or less: what is settled early
            leaves its blocks to others, and to further trials.
    """

    trials: int
    explore_blocks: int
    validate_blocks: int


class Search:
    """One search over all batch sizes."""

    def __init__(
        self,
        *,
        arms: Sequence[SpeculativeConfig],
        batch_sizes: Sequence[int],
        predictor: Predictor,
        ledger: Ledger,
        study: Study,
        budget: Budget,
        seed: int,
        known: Mapping[Cell, ProposedBy] | None = None,
        weights: Mapping[int, float] | None = None,
        margins: Margins = DEFAULT_MARGINS,
        on_trial: Callable[[float, str], None] = lambda share, text: None,
        on_block: Callable[[float, str], None] = lambda share, text: None,
    ) -> None:
        """Prepare.

        Args:
            arms: All that speculate.
            batch_sizes: Ascending.
            predictor: The prior.
            ledger: Measures and keeps.
            study: Notes.
            budget: What may be spent.
            seed: Of all random choices.
            known: Cells to measure first, and who asks for them; those outside the search are
                left out.
            weights: Share of the traffic's time at each batch size; None for uniform.
            margins: Of the decision.
            on_trial: Told the share of the exploration that is spent, and what is measured.
            on_block: The same for the validation.
        """
        self._arms = tuple(arms)
        self._sizes = tuple(batch_sizes)
        self._predictor = predictor
        self._ledger = ledger
        self._study = study
        self._budget = budget
        self._weights = weights or {size: 1 / len(self._sizes) for size in self._sizes}
        self._given_weights = weights
        self._margins = margins
        self._on_trial = on_trial
        self._on_block = on_block
        predictions = {
            (size, arm): log(predictor.tokens_per_s(arm, size) / predictor.off_tokens_per_s(size))
            for size in self._sizes
            for arm in self._arms
        }
        self._belief = Belief(predictions, derive_seed(seed, "belief"))
        self._known = {
            cell: who for cell, who in (known or {}).items() if cell in self._belief.index
        }
        self._explorer = Explorer(
            self._belief, self._arms, self._weights, derive_seed(seed, "explore")
        )
        self._purse = Purse(budget.validate_blocks * len(self._sizes), on_block)
        self._validator = Validator(ledger, self._belief, self._purse, margins, len(self._sizes))

    def run(self) -> tuple[Decision, list[CellEvidence]]:
        """Search; the decision and all that it rests on."""
        if self._arms:
            self._explore()
        refused: dict[Kind, Mapping[int, SpeculativeConfig]] = {}
        while True:
            self._forget_failed()
            choice = self._explorer.choice(frozenset(refused))
            candidates: Mapping[int, SpeculativeConfig] = self._validate(choice)
            decision, evidence = self._decide(choice.kind, candidates)
            is_dead = choice.kind is not None and choice.kind[0] in self._ledger.failed
            is_loaded = decision.envelope.drafter != OFF_DRAFTER
            if choice.kind is None or (not is_dead and (is_loaded or self._purse.is_empty)):
                break
            refused[choice.kind] = candidates
        if not is_loaded:
            # What to explain is why the most promising was refused, not what came last.
            for kind, candidates in refused.items():
                if kind[0] not in self._ledger.failed:
                    return self._decide(kind, candidates)
        return decision, evidence

    def _decide(
        self, kind: Kind | None, candidates: Mapping[int, SpeculativeConfig]
    ) -> tuple[Decision, list[CellEvidence]]:
        """By all that is known by now."""
        evidence, envelope = self.evidence(), self._envelope(kind)
        decision = decide(
            evidence, envelope, self._given_weights, self._margins, candidates=candidates
        )
        return decision, evidence

    def _validate(self, choice: Choice) -> dict[int, SpeculativeConfig]:
        """Settle what a choice promises; the arm to decide about at each batch size."""
        if choice.kind is None:
            return {}
        arms = {size: arm for size, arm in choice.arms.items() if arm.speculates}
        most = self._budget.validate_blocks
        # First what may rule the drafter out altogether, as far as it is known to be needed.
        idle = [(size, self._idle(choice.kind)) for size in self._sizes if size not in arms]
        self._validator.settle(idle, most)
        if any(self._validator.fails(cell) for cell in idle):
            return arms
        self._validator.settle(arms.items(), most // 2)
        # Idle drafters need their share before doubtful arms have had all of theirs.
        for cell in sorted(arms.items(), key=self._expected, reverse=True):
            if self._any_passes(arms):
                break
            self._validator.settle([cell], most)
        if not self._any_passes(arms):
            return arms
        self._settle_idle(choice.kind, arms)
        arms = self._refine(choice.kind, arms)
        self._settle_idle(choice.kind, arms)
        self._validator.settle(arms.items(), self._purse.left)
        return arms

    def _any_passes(self, arms: Mapping[int, SpeculativeConfig]) -> bool:
        return any(self._validator.passes(cell) for cell in arms.items())

    def _expected(self, cell: Cell) -> float:
        return float(self._belief.mean()[self._belief.index[cell]])

    def _idle(self, kind: Kind) -> SpeculativeConfig:
        return SpeculativeConfig(drafter=kind[0])

    def _settle_idle(self, kind: Kind, arms: Mapping[int, SpeculativeConfig]) -> None:
        """What the loaded drafter costs where it does not draft."""
        sizes = [
            size
            for size in self._sizes
            if size not in arms or not self._validator.passes((size, arms[size]))
        ]
        self._validator.settle([(size, self._idle(kind)) for size in sizes], self._purse.left)

    def _refine(
        self, kind: Kind, arms: Mapping[int, SpeculativeConfig]
    ) -> dict[int, SpeculativeConfig]:
        """Spend what is left on K; another K takes over where it passes too."""
        arms, tried = dict(arms), dict.fromkeys(arms, 1)
        while not self._purse.is_empty and kind[0] not in self._ledger.failed:
            now = {size: arms.get(size, OFF) for size in self._sizes}
            cell = self._explorer.propose_within(kind, now)
            if cell is None:
                break
            self._purse.spend(self._budget.explore_blocks, cell)
            self._measure(cell, "sampler")
            size = cell[0]
            other = self._explorer.arm(kind, size)
            if tried.get(size, 0) == FINALISTS or self._lead(size, other, arms.get(size)) < _BETTER:
                continue
            tried[size] = tried.get(size, 0) + 1
            self._validator.settle([(size, other)], self._budget.validate_blocks)
            if size not in arms or self._validator.passes((size, other)):
                arms[size] = other
        return arms

    def _lead(self, size: int, other: SpeculativeConfig, than: SpeculativeConfig | None) -> float:
        """Expected log gain of one arm over another, or over off."""
        mean, index = self._belief.mean(), self._belief.index
        if not other.speculates:
            return 0.0
        base = 0.0 if than is None else float(mean[index[size, than]])
        return float(mean[index[size, other]]) - base

    def evidence(self) -> list[CellEvidence]:
        """What is known about every arm that was measured, and about every batch size.

        Drafters that failed are left out: nothing of theirs may be published.
        """
        measured = [
            cell
            for cell in {*self._ledger.arms("explore"), *self._ledger.arms("validate")}
            if cell[1].drafter not in self._ledger.failed
        ]
        evidence = [
            CellEvidence(
                batch_size=batch_size,
                config=config,
                explored=self._ledger.estimate((batch_size, config), "explore"),
                validated=self._ledger.estimate((batch_size, config), "validate"),
                predicted_tokens_per_s=self._predictor.tokens_per_s(config, batch_size),
            )
            for batch_size, config in sorted(measured, key=lambda arm: (arm[0], arm[1].label()))
        ]
        # A batch size whose trials all failed belongs in the evidence too, without estimates.
        present = {cell.batch_size for cell in evidence}
        evidence += [
            CellEvidence(batch_size=size, config=self._arms[0])
            for size in self._sizes
            if size not in present and self._arms
        ]
        return evidence

    def _explore(self) -> None:
        known = dict(self._known)
        for done in range(self._budget.trials):
            self._forget_failed()
            failed = self._ledger.failed
            known = {cell: who for cell, who in known.items() if cell[1].drafter not in failed}
            cell = next(iter(known), None) or self._explorer.propose() or self._unseen()
            if cell is None:
                return
            self._on_trial(done / self._budget.trials, f"{cell[1].label()} at batch {cell[0]}")
            self._measure(cell, known.pop(cell, "sampler"))

    def _unseen(self) -> Cell | None:
        """A batch size without a block: it must not be decided on predictions alone."""
        seen = {size for size, _ in self._ledger.arms("explore")}
        for size in self._sizes:
            if size not in seen and (arm := self._explorer.favourite(size)):
                return size, arm
        return None

    def _measure(self, cell: Arm, proposed_by: ProposedBy) -> None:
        number = self._study.ask(cell)
        before = len(self._ledger.log_ratios(cell, "explore"))
        is_measured = self._ledger.measure(
            cell,
            self._budget.explore_blocks,
            stage="explore",
            proposed_by=proposed_by,
            trial_number=number,
        )
        for value in self._ledger.log_ratios(cell, "explore")[before:]:
            self._belief.observe(cell, value)
        estimate = self._ledger.estimate(cell, "explore") if is_measured else None
        self._study.tell(cell, number, None if estimate is None else estimate.log_gain)

    def _forget_failed(self) -> None:
        for drafter in self._ledger.failed:
            self._explorer.discard(drafter)

    def _envelope(self, kind: Kind | None) -> Envelope:
        if kind is None:
            return Envelope()
        drafter, temperature = kind
        return Envelope(
            drafter=drafter,
            max_num_speculative_tokens=max(arm.num_speculative_tokens for arm in self._arms),
            draft_temperature=temperature,
        )

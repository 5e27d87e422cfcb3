"""What every drafter accepts on the recorded answers, for every K and draft temperature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune.progress import Progress
from autotune.tuning.session import Session
from engine.drafters.base import DrafterSnapshot
from engine.drafters.profiling import profile, samples_drafts
from engine.errors import EngineError
from engine.profile import StartProfile
from engine.replay import Replay, replay
from policies.types import SpeculativeConfig
from store.records import AcceptanceRecord


@dataclass(slots=True)
class AcceptanceProfile:
    """Replayed acceptance of all arms.

    Attributes:
        profiles: Start profiles of every trajectory, by drafter and draft temperature.
        snapshots: Each drafter's own keys and values, by drafter and request.
    """

    profiles: Mapping[tuple[str, float | None], list[StartProfile]]
    snapshots: Mapping[str, Mapping[str, DrafterSnapshot]]
    _replays: dict[SpeculativeConfig, Replay] = field(default_factory=dict)

    def arms(self, max_num_speculative_tokens: int) -> list[SpeculativeConfig]:
        """Every arm that speculates, in a fixed order."""
        return [
            SpeculativeConfig(
                drafter=drafter, num_speculative_tokens=k, draft_temperature=temperature
            )
            for drafter, temperature in self.profiles
            for k in range(1, max_num_speculative_tokens + 1)
        ]

    def replay(self, config: SpeculativeConfig) -> Replay:
        """Expected counts of an arm that speculates."""
        if config not in self._replays:
            profiles = self.profiles[config.drafter, config.draft_temperature]
            self._replays[config] = replay(profiles, config.num_speculative_tokens)
        return self._replays[config]

    def discard(self, drafter: str) -> None:
        """Forget a drafter that turned out not to work."""
        self.profiles = {key: rows for key, rows in self.profiles.items() if key[0] != drafter}
        self.snapshots = {name: held for name, held in self.snapshots.items() if name != drafter}

    def log_std_error(self, config: SpeculativeConfig) -> float:
        """Standard error of log tokens per round from the choice of requests; 0 for K = 0."""
        if not config.speculates:
            return 0.0
        counts = self.replay(config)
        return (counts.tokens_per_round_std_error or 0.0) / counts.tokens_per_round


def profile_drafters(session: Session, progress: Progress) -> AcceptanceProfile:
    """Score every drafter on every trajectory; one that fails is left out with a note."""
    progress.begin("Replay the drafters")
    profiles: dict[tuple[str, float | None], list[StartProfile]] = {}
    snapshots: dict[str, dict[str, DrafterSnapshot]] = {}
    settings = session.settings
    sampled = any(not t.request.params.is_greedy for t in session.trajectories)
    steps = len(session.drafters) * len(session.trajectories)
    for order, (name, drafter) in enumerate(session.drafters.items()):
        # Deterministic drafts, and greedy requests, have no draft temperature to vary.
        varied = sampled and samples_drafts(drafter)
        temperatures = settings.draft_temperatures if varied else (None,)
        found: dict[float | None, list[StartProfile]] = defaultdict(list)
        held: dict[str, DrafterSnapshot] = {}
        try:
            for index, trajectory in enumerate(session.trajectories):
                rows, snapshot = profile(
                    drafter,
                    trajectory,
                    temperatures,
                    max_drafts=settings.max_num_speculative_tokens,
                    max_len=session.engine.max_len,
                )
                if snapshot is not None:
                    held[trajectory.request.request_id] = snapshot
                for temperature, row in zip(temperatures, rows, strict=True):
                    found[temperature].append(row)
                progress.update((order * len(session.trajectories) + index + 1) / steps, name)
        except EngineError as error:
            progress.note(f"drafter {name} skipped: {error}")
            continue
        snapshots[name] = held
        profiles |= {(name, temperature): rows for temperature, rows in found.items()}
    return AcceptanceProfile(profiles, snapshots)


def acceptance_records(
    session: Session, acceptance: AcceptanceProfile, run_id: str
) -> Iterator[AcceptanceRecord]:
    """One record per arm, task and request temperature."""
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for index, trajectory in enumerate(session.trajectories):
        request = trajectory.request
        groups[request.task, request.params.temperature].append(index)
    for config in acceptance.arms(session.settings.max_num_speculative_tokens):
        for (task, temperature), rows in sorted(groups.items()):
            counts = acceptance.replay(config).select(rows)
            rounds = float(counts.num_rounds.sum())
            if rounds == 0:
                continue
            drafts = counts.num_rounds_by_drafts.sum(dim=0)
            yield AcceptanceRecord(
                run_id=run_id,
                drafter=config.drafter,
                draft_temperature=config.draft_temperature,
                num_speculative_tokens=config.num_speculative_tokens,
                task=task,
                temperature=temperature,
                num_requests=len(rows),
                num_output_tokens=int(counts.num_tokens.sum()),
                expected_rounds=rounds,
                tokens_per_round=counts.tokens_per_round,
                tokens_per_round_std_error=counts.tokens_per_round_std_error,
                num_drafts=float(drafts[1:].sum()),
                num_draft_tokens=sum(k * float(n) for k, n in enumerate(drafts)),
                num_accepted_tokens_per_pos=tuple(
                    float(n) for n in counts.num_accepted_per_pos.sum(dim=0)
                ),
                source="replay",
            )

"""Time the few cells that the cost table interpolates between."""

from __future__ import annotations

import random
from collections.abc import Iterator

from autotune.progress import Progress
from autotune.tuning.acceptance import AcceptanceProfile
from autotune.tuning.seeds import derive_seed
from autotune.tuning.session import Session
from engine.drafters.profiling import samples_drafts
from engine.errors import EngineError
from engine.latency import CostCell, time_draft, time_verify
from engine.record import Trajectory
from store.records import CostRecord

_SAMPLES = 5


def measure_costs(
    session: Session, acceptance: AcceptanceProfile, progress: Progress
) -> list[CostCell]:
    """Time verify passes over K and proposals over K at every batch size.

    Args:
        session: Its engine must be idle.
        acceptance: For the drafters that survived replay, and their snapshots. One that fails
            here is discarded with a note.
        progress: Told about every cell.
    """
    progress.begin("Time the steps")
    largest = session.settings.max_num_speculative_tokens
    verify_ks = sorted({0, 1, 2, 4, largest} - set(range(largest + 1, 5)))
    draft_ks = sorted({1, min(4, largest)})
    num_draft_cells = len(draft_ks) * len(acceptance.snapshots)
    steps = len(session.settings.batch_sizes) * (len(verify_ks) + num_draft_cells)
    cells: list[CostCell] = []
    for batch_size in session.settings.batch_sizes:
        states = middle_states(session, batch_size)
        for k in verify_ks:
            cells.append(time_verify(session.engine, states, k, num_samples=_SAMPLES))
            progress.update(len(cells) / steps, f"verify, batch {batch_size}, K = {k}")
        for name in list(acceptance.snapshots):
            drafter = session.drafters[name]
            try:
                for k in draft_ks if samples_drafts(drafter) else draft_ks[:1]:
                    cells.append(
                        time_draft(
                            session.engine,
                            drafter,
                            states,
                            acceptance.snapshots[name],
                            k,
                            num_samples=_SAMPLES,
                        )
                    )
                    progress.update(len(cells) / steps, f"{name}, batch {batch_size}, K = {k}")
            except EngineError as error:
                progress.note(f"drafter {name} skipped: {error}")
                acceptance.discard(name)
    return cells


def middle_states(session: Session, batch_size: int) -> list[tuple[Trajectory, int]]:
    """Answers at half their length: a typical context, drawn by the run's seed."""
    generator = random.Random(derive_seed(session.settings.seed, "costs", batch_size))
    usable = [t for t in session.trajectories if t.num_decoded > 0]
    chosen = generator.choices(usable, k=batch_size)
    return [(trajectory, max(1, trajectory.num_decoded // 2)) for trajectory in chosen]


def cost_records(cells: list[CostCell], run_id: str) -> Iterator[CostRecord]:
    """The ledger's form of the cells; low and high are the extremes of the samples."""
    for cell in cells:
        yield CostRecord(
            run_id=run_id,
            kind="verify" if cell.kind == "verify" else "draft",
            drafter=cell.drafter,
            batch_size=cell.batch_size,
            num_tokens=cell.num_tokens,
            num_speculative_tokens=cell.num_speculative_tokens,
            seconds_median=cell.median_s,
            seconds_low=min(cell.seconds),
            seconds_high=max(cell.seconds),
            num_samples=len(cell.seconds),
        )

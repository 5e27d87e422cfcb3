"""The drafters of a search: which to try, built for the target, and checked on its answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.progress import Progress
from autotune.settings import TuneSettings
from engine.drafters.base import Drafter
from engine.drafters.eagle3.calibrate import calibrate
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.factory import DrafterSpec, build_drafter, from_folder, layer_skip, ngram
from engine.engine import Engine
from engine.errors import EngineError
from engine.record import Trajectory

_CALIBRATION_TOKENS = 2048


def describe_drafters(
    settings: TuneSettings, num_layers: int, progress: Progress
) -> list[DrafterSpec]:
    """The drafters to try, cheapest first."""
    depths = settings.layer_skip
    if depths is None and settings.drafters:
        depths = ()
    elif depths is None:
        # A third, two thirds and nearly all of the target: draft size as a search axis.
        depths = tuple(sorted({num_layers // 3, 2 * num_layers // 3, num_layers - 4} - {0}))
        depths = tuple(depth for depth in depths if 0 < depth < num_layers)
    specs = [ngram()] if settings.ngram else []
    specs += [layer_skip(depth) for depth in depths]
    for name, folder in settings.drafters.items():
        try:
            specs.append(from_folder(name, folder))
        except EngineError as error:
            progress.note(f"drafter {name} skipped: {error}")
    return specs


def build_drafters(
    specs: Iterable[DrafterSpec],
    engine: Engine,
    target_folder: Path,
    trajectories: Iterable[Trajectory],
    *,
    budget_bytes: float,
    progress: Progress,
) -> dict[str, tuple[DrafterSpec, Drafter]]:
    """Build what fits the target and the memory; the others are left out with a note.

    Args:
        specs: In the order in which memory is given out.
        engine: Holds the target; idle.
        target_folder: The target's checkpoint.
        trajectories: The target's answers, to check heads on.
        budget_bytes: Memory for all drafters together.
        progress: Told what was left out, and why.
    """
    built: dict[str, tuple[DrafterSpec, Drafter]] = {}
    room = budget_bytes
    for spec in specs:
        try:
            drafter = build_drafter(spec, engine, target_folder, budget_bytes=int(max(0, room)))
        except EngineError as error:
            progress.note(f"drafter {spec.name} skipped: {error}")
            continue
        if isinstance(drafter, Eagle3Drafter) and not _fits(
            drafter, engine, trajectories, progress
        ):
            continue
        built[spec.name] = (spec, drafter)
        room -= drafter.num_bytes
    return built


def _fits(
    drafter: Eagle3Drafter, engine: Engine, trajectories: Iterable[Trajectory], progress: Progress
) -> bool:
    """Whether a head follows this target at all; says so, or that other layer ids fit better."""
    texts, room = [], _CALIBRATION_TOKENS
    for trajectory in trajectories:
        tokens = [*trajectory.request.prompt_tokens, *trajectory.output_tokens][:room]
        texts.append(tokens)
        room -= len(tokens)
    found = calibrate(drafter, engine, texts)
    if found.is_chance:
        progress.note(
            f"drafter {drafter.name} skipped: its first draft is the target's choice in "
            f"{found.agreement[0]:.1%} of {found.num_positions} positions, chance is "
            f"{found.chance:.1%}; it was made for another model or reads other layers"
        )
        return False
    if found.better_layers is not None:
        progress.note(
            f"drafter {drafter.name} reads the inputs of layers {list(found.layers)}, but "
            f"{list(found.better_layers)} fit it better ("
            + ", ".join(
                f"{f'{shift:+d}' if shift else 'as configured'}: {share:.1%}"
                for shift, share in found.agreement.items()
            )
            + "): the layer ids in its config.json are probably off by one"
        )
    return True

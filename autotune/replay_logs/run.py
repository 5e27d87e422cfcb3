"""A replay from a log to its figures: read, build the drafter, score, add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from autotune.device.detection import detect
from autotune.progress import Progress, Stage
from autotune.replay_logs.answers import (
    Log,
    highest_token,
    num_tokens,
    read_log,
    require_known_log_probs,
    require_tokenizer,
    to_trajectories,
)
from autotune.replay_logs.drafter import describe_drafter
from autotune.replay_logs.settings import ReplaySettings
from autotune.report.acceptance import AcceptanceRow
from autotune.report.replayed import ReplayedRow, ReplayReport
from engine.cache_folder import default_cache
from engine.checkpoint.hub import resolve_model
from engine.drafters.alone import build_alone, longest_text
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec
from engine.drafters.profiling import profile
from engine.kernels.backend import fastest_dtype, resolve_backend
from engine.profile import StartProfile
from engine.record import Trajectory
from engine.replay import Replay, replay
from engine.tokenizer import Tokenizer
from policies.types import SpeculativeConfig, VerificationRule

_READ, _LOAD, _REPLAY = "Read the log", "Load the drafter", "Replay"


def replay_logs(
    settings: ReplaySettings, axes: tuple[str, ...], progress: Progress
) -> ReplayReport:
    """Score a drafter on logged answers, without a pass of the target.

    Args:
        settings: What to score on what.
        axes: What groups of answers are told apart by, as `report.acceptance.parse_axes` gives.
        progress: Told the stages, and what was left out.

    Raises:
        AutotuneError: The log cannot be used, or the drafter cannot be scored from one.
        EngineError: The drafter cannot be loaded, or fails on an answer.
    """
    progress.plan([Stage(_READ, 2), Stage(_LOAD, 3), Stage(_REPLAY, 30)])
    progress.begin(_READ)
    spec = describe_drafter(settings.drafter, progress.note)
    # A deterministic draft is accepted while it is what was said, however likely that was.
    draws = spec.method != "ngram" and settings.draft_temperature != 0.0
    log = read_log(settings.logs, limit=settings.max_answers, needs_log_probs=draws)
    if not log.answers:
        raise log.nothing_usable()
    require_known_log_probs(log, settings.log_probs)
    require_tokenizer(log, settings.target)
    folder = None
    if settings.target is not None:
        folder = resolve_model(settings.target, default_cache(), progress.note)
    tokenizer = None if folder is None else Tokenizer(folder)
    trajectories = to_trajectories(
        log,
        tokenizer,
        log_probs=settings.log_probs,
        max_drafts=settings.max_num_speculative_tokens,
        longest=longest_text(spec),
    )
    _tell(log, spec, settings, progress)
    progress.begin(_LOAD)
    device = detect(settings.device).chosen
    torch_device = torch.device(device.kind)
    dtype = torch.bfloat16
    if device.kind == "cpu":
        dtype = fastest_dtype(multiplies_bfloat16=device.multiplies_bfloat16)
    drafter = build_alone(
        spec,
        target_folder=folder,
        min_vocab_size=highest_token(trajectories) + 1,
        max_len=num_tokens(trajectories),
        dtype=dtype,
        device=torch_device,
        backend=resolve_backend(torch_device, dtype).backend,
    )
    progress.begin(_REPLAY)
    profiles = _profiles(drafter, trajectories, settings, progress)
    sizes, groups = _rows(spec, trajectories, profiles, settings, axes)
    return ReplayReport(
        source=f"file:{settings.logs.name}",
        drafter=spec.name,
        method=spec.method,
        draft_temperature=settings.draft_temperature,
        num_answers=len(trajectories),
        skipped=log.skipped.counts,
        axes=axes,
        sizes=sizes,
        groups=groups,
    )


def _tell(log: Log, spec: DrafterSpec, settings: ReplaySettings, progress: Progress) -> None:
    if skipped := log.skipped.describe():
        progress.note(f"lines skipped: {skipped}")
    if log.cut_short:
        progress.note(f"{log.path} ends in the middle of a line: it was cut short")
    unnamed = sum(answer.settings.temperature is None for answer in log.answers)
    if unnamed:
        progress.note(
            f"{unnamed} answers name no temperature, so it is taken to be 1; where the server has "
            "another default, as vLLM takes it from generation_config.json, their figures are wrong"
        )
    if spec.folder is not None and settings.target is None:
        progress.note(
            f"the vocabulary of {spec.name} is taken to be that of the log; --target compares it"
        )


def _profiles(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    settings: ReplaySettings,
    progress: Progress,
) -> list[StartProfile]:
    k_max = settings.max_num_speculative_tokens
    found = []
    for done, trajectory in enumerate(trajectories, start=1):
        (row,), _ = profile(
            drafter,
            trajectory,
            [settings.draft_temperature],
            max_drafts=k_max,
            # The server's own limit of the context is not in the log: none shortens the drafts.
            max_len=num_tokens([trajectory]) + k_max,
        )
        found.append(row)
        progress.update(done / len(trajectories), f"{done} of {len(trajectories)} answers")
    return found


def _rows(
    spec: DrafterSpec,
    trajectories: Sequence[Trajectory],
    profiles: Sequence[StartProfile],
    settings: ReplaySettings,
    axes: tuple[str, ...],
) -> tuple[tuple[ReplayedRow, ...], tuple[ReplayedRow, ...]]:
    """Figures over all answers, and over every group."""
    members: dict[tuple[str | None, float | None], list[int]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        request = trajectory.request
        task = request.task if "task" in axes else None
        temperature = request.params.temperature if "temperature" in axes else None
        members[task, temperature].append(index)
    ordered = sorted(members.items(), key=lambda item: (item[0][0] or "", item[0][1] or 0.0))
    drawn = any(profile.block_survival is not None for profile in profiles)
    rules = (
        {rule.value: rule for rule in VerificationRule}
        if drawn
        else {"delta": VerificationRule.RATIO}
    )
    sizes, groups = [], []
    for name, rule in rules.items():
        for k in range(1, settings.max_num_speculative_tokens + 1):
            config = SpeculativeConfig(
                drafter=spec.name,
                num_speculative_tokens=k,
                draft_temperature=settings.draft_temperature,
            )
            counts = replay(profiles, k, rule)
            sizes.append(_row(name, config, counts, None, None))
            for (task, temperature), rows in ordered:
                selected = counts.select(rows)
                if float(selected.num_rounds.sum()) > 0:
                    groups.append(_row(name, config, selected, task, temperature))
    return tuple(sizes), tuple(groups)


def _row(
    rule: str,
    config: SpeculativeConfig,
    counts: Replay,
    task: str | None,
    temperature: float | None,
) -> ReplayedRow:
    by_drafts = counts.num_rounds_by_drafts.sum(dim=0).tolist()
    return ReplayedRow(
        rule=rule,
        counts=AcceptanceRow(
            config=config,
            task=task,
            temperature=temperature,
            num_requests=counts.num_rounds.shape[0],
            num_output_tokens=int(counts.num_tokens.sum()),
            num_rounds=float(counts.num_rounds.sum()),
            num_drafts=sum(by_drafts[1:]),
            num_draft_tokens=sum(k * rounds for k, rounds in enumerate(by_drafts)),
            num_accepted_tokens_per_pos=tuple(counts.num_accepted_per_pos.sum(dim=0).tolist()),
        ),
        std_error=counts.tokens_per_round_std_error,
    )

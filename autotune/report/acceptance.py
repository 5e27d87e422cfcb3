"""What `spectune acceptance` tells: stored counts added up, and ratios of those sums.

Averages of ratios are never taken: a group's rate is its accepted tokens over its drafted ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, get_args

from autotune.document import PublishedConfig
from autotune.errors import ConfigError
from autotune.report.arms import TriedArm, tried_arms
from policies.choose import choose_envelope
from policies.types import SpeculativeConfig
from store.records import AcceptanceRecord

if TYPE_CHECKING:
    from store.repository import Store

Axis = Literal["task", "temperature", "position", "drafter"]
"""What rows are told apart by; `position` adds one column per draft position instead."""

AXES: tuple[str, ...] = get_args(Axis)

DEFINITIONS = (
    "accepted = accepted / drafted tokens, without the bonus token; draft tokens after a "
    "rejection count as drafted.",
    "position i = accepted i-th draft tokens / rounds that drafted, without the bonus token; "
    "unconditional: a rejection counts against every later position.",
    "tokens per round = output tokens / all rounds, the bonus or recovered token included.",
)
"""What the columns mean, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow:
    """Counts of one group of requests under one arm.

    Attributes:
        config: The arm.
        task: Task of the requests; None for all.
        temperature: Temperature of the requests; None for all.
        num_requests: Requests in the group.
        num_output_tokens: Their output tokens.
        num_rounds: Verify rounds for those tokens (an expectation when replayed).
        num_drafts: Rounds of them that drafted at least one token.
        num_draft_tokens: Tokens drafted in those rounds.
        num_accepted_tokens_per_pos: Draft tokens accepted at each position.
    """

    config: SpeculativeConfig
    task: str | None
    temperature: float | None
    num_requests: int
    num_output_tokens: int
    num_rounds: float
    num_drafts: float
    num_draft_tokens: float
    num_accepted_tokens_per_pos: tuple[float, ...]

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None when nothing was drafted."""
        accepted = sum(self.num_accepted_tokens_per_pos)
        return accepted / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_per_pos(self) -> tuple[float, ...]:
        """Accepted tokens at each position / rounds that drafted; empty without drafts."""
        if not self.num_drafts:
            return ()
        return tuple(count / self.num_drafts for count in self.num_accepted_tokens_per_pos)

    @property
    def draft_tokens_per_round(self) -> float | None:
        """Drafted tokens / all rounds; below K where the drafter had nothing to propose."""
        return self.num_draft_tokens / self.num_rounds if self.num_rounds else None

    @property
    def share_of_rounds_that_drafted(self) -> float | None:
        """Rounds that drafted / all rounds: n-gram drafting often has nothing to propose."""
        return self.num_drafts / self.num_rounds if self.num_rounds else None

    @property
    def tokens_per_round(self) -> float | None:
        """Output tokens / all rounds."""
        return self.num_output_tokens / self.num_rounds if self.num_rounds else None

    def to_json(self) -> dict[str, object]:
        """Counts and ratios as JSON values."""
        return {
            "drafter": self.config.drafter,
            "num_speculative_tokens": self.config.num_speculative_tokens,
            "draft_temperature": self.config.draft_temperature,
            "task": self.task,
            "temperature": self.temperature,
            "num_requests": self.num_requests,
            "num_output_tokens": self.num_output_tokens,
            "num_rounds": self.num_rounds,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": sum(self.num_accepted_tokens_per_pos),
            "num_accepted_tokens_per_pos": list(self.num_accepted_tokens_per_pos),
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_per_pos": list(self.acceptance_per_pos),
            "draft_tokens_per_round": self.draft_tokens_per_round,
            "share_of_rounds_that_drafted": self.share_of_rounds_that_drafted,
            "tokens_per_round": self.tokens_per_round,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """Acceptance of one run.

    Attributes:
        run_id: The run.
        workload: Source of its workload.
        axes: What the rows are told apart by.
        rows: Empty where the run stored no acceptance.
    """

    run_id: str
    workload: str
    axes: tuple[str, ...]
    rows: tuple[AcceptanceRow, ...]

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values."""
        return {
            "run_id": self.run_id,
            "workload": self.workload,
            "by": list(self.axes),
            "definitions": list(DEFINITIONS),
            "rows": [row.to_json() for row in self.rows],
        }


def acceptance_report(
    store: Store,
    run_id: str,
    config: PublishedConfig | None,
    axes: tuple[str, ...],
    *,
    drafter: str | None = None,
    num_speculative_tokens: int | None = None,
) -> AcceptanceReport:
    """Read a run's acceptance and add it up.

    Args:
        store: Holds the run.
        run_id: The run.
        config: What the run published, or None.
        axes: As in `parse_axes`.
        drafter: As in `select`.
        num_speculative_tokens: As in `select`.

    Raises:
        StoreError: There is no such run, or it cannot be read.
        ConfigError: The run has nothing of what was asked for.
    """
    run = store.run(run_id)
    records = select(
        store.acceptance(run_id),
        published_arm(config) or best_arm(tried_arms(store.measurements(run_id))),
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        every_drafter="drafter" in axes,
    )
    return AcceptanceReport(
        run_id=run.run_id,
        workload=run.workload_source,
        axes=axes,
        rows=acceptance_rows(records, axes),
    )


def published_arm(config: PublishedConfig | None) -> SpeculativeConfig | None:
    """The published envelope at its largest K; None where it does not speculate."""
    if config is None or not config.envelope.max_num_speculative_tokens:
        return None
    return SpeculativeConfig(
        drafter=config.envelope.drafter,
        num_speculative_tokens=config.envelope.max_num_speculative_tokens,
        draft_temperature=config.envelope.draft_temperature,
    )


def parse_axes(text: str) -> tuple[str, ...]:
    """The axes of a comma-separated list, each once.

    Raises:
        ConfigError: One of them does not exist.
    """
    axes = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown or not axes:
        raise ConfigError(f"by = {text}: must name one or more of {', '.join(AXES)}")
    return axes


def best_arm(arms: Sequence[TriedArm]) -> SpeculativeConfig | None:
    """The envelope with the best gains in the search, at its largest K, off left out.

    None where nothing was measured.
    """
    for score in choose_envelope([arm.evidence() for arm in arms]):
        if score.envelope.max_num_speculative_tokens:
            return SpeculativeConfig(
                drafter=score.envelope.drafter,
                num_speculative_tokens=score.envelope.max_num_speculative_tokens,
                draft_temperature=score.envelope.draft_temperature,
            )
    return None


def select(
    records: Sequence[AcceptanceRecord],
    default: SpeculativeConfig | None,
    *,
    drafter: str | None = None,
    num_speculative_tokens: int | None = None,
    every_drafter: bool = False,
) -> tuple[AcceptanceRecord, ...]:
    """The records to tell about: as a rule those of one arm.

    Args:
        records: Everything the run stored.
        default: The arm to tell about where nothing else is asked for; None takes the first.
        drafter: Only this one, at every draft temperature.
        num_speculative_tokens: Only this K; None takes that of `default`, or the largest.
        every_drafter: All drafters at every draft temperature.

    Raises:
        ConfigError: There are no records of what was asked for.
    """
    if not records:
        return ()
    arms = list(dict.fromkeys(_config(record) for record in records))
    names = list(dict.fromkeys(arm.drafter for arm in arms))
    if drafter is not None and drafter not in names:
        raise ConfigError(f"drafter = {drafter}: the run has {', '.join(names)}")
    first = default if default is not None and default in arms else arms[0]
    sizes = sorted({arm.num_speculative_tokens for arm in arms})
    if num_speculative_tokens is not None and num_speculative_tokens not in sizes:
        raise ConfigError(
            f"k = {num_speculative_tokens}: the run has {', '.join(str(size) for size in sizes)}"
        )
    wanted = num_speculative_tokens
    if wanted is None:
        wanted = first.num_speculative_tokens if first is default else sizes[-1]
    single = drafter is None and not every_drafter
    return tuple(
        record
        for record in records
        if record.num_speculative_tokens == wanted
        and drafter in (None, record.drafter)
        and (
            not single
            or (record.drafter, record.draft_temperature)
            == (first.drafter, first.draft_temperature)
        )
    )


def acceptance_rows(
    records: Iterable[AcceptanceRecord], axes: Sequence[str]
) -> tuple[AcceptanceRow, ...]:
    """Add up the records of every group.

    Args:
        records: As selected. Two arms are never added up, whatever the axes.
        axes: What tells groups of requests apart.
    """
    groups: dict[tuple[SpeculativeConfig, str | None, float | None], list[AcceptanceRecord]]
    groups = defaultdict(list)
    for record in records:
        task = record.task if "task" in axes else None
        temperature = record.temperature if "temperature" in axes else None
        groups[_config(record), task, temperature].append(record)
    rows = (_add_up(*key, group) for key, group in groups.items())
    return tuple(sorted(rows, key=_order))


def _order(row: AcceptanceRow) -> tuple[str, int, float, str, float]:
    """By arm, then task, then temperature; groups over all come first."""
    arm = row.config
    temperature = -1.0 if arm.draft_temperature is None else arm.draft_temperature
    group = -1.0 if row.temperature is None else row.temperature
    return arm.drafter, arm.num_speculative_tokens, temperature, row.task or "", group


def _add_up(
    config: SpeculativeConfig,
    task: str | None,
    temperature: float | None,
    group: Sequence[AcceptanceRecord],
) -> AcceptanceRow:
    positions = zip_longest(*(one.num_accepted_tokens_per_pos for one in group), fillvalue=0.0)
    return AcceptanceRow(
        config=config,
        task=task,
        temperature=temperature,
        num_requests=sum(one.num_requests for one in group),
        num_output_tokens=sum(one.num_output_tokens for one in group),
        num_rounds=sum(one.expected_rounds for one in group),
        num_drafts=sum(one.num_drafts for one in group),
        num_draft_tokens=sum(one.num_draft_tokens for one in group),
        num_accepted_tokens_per_pos=tuple(sum(counts) for counts in positions),
    )


def _config(record: AcceptanceRecord) -> SpeculativeConfig:
    return SpeculativeConfig(
        drafter=record.drafter,
        num_speculative_tokens=record.num_speculative_tokens,
        draft_temperature=record.draft_temperature,
    )

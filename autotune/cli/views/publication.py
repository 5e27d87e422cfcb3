"""A published document for people: what it is for, the choices, and the whole schedule."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.table import Table

from autotune.cli.views import words
from autotune.cli.views.tables import add_columns, new_table, print_table
from autotune.document import CellEvidenceModel, EnvelopeModel, PublishedConfig
from autotune.report.lookup import arm_of_evidence
from store.records import Publication


def print_publication(
    console: Console, config: PublishedConfig, publication: Publication, now: datetime
) -> None:
    """Print a whole document.

    Args:
        console: Where to.
        config: The document.
        publication: Where it is stored.
        now: The time, to tell its age.
    """
    for line in header(config, publication.scope, now):
        console.print(line, soft_wrap=True)
    console.print()
    print_table(console, choices_table(config))
    print_table(console, schedule_table(config))
    console.print(config.policy.between_sizes, soft_wrap=True)
    console.print(config.reason, soft_wrap=True)


def header(config: PublishedConfig, scope: str, now: datetime) -> list[str]:
    """What the document is for and how old it is, one line per fact."""
    identity, target, device = config.identity, config.match.target, config.match.device
    workload = config.workload
    kernels = f", {config.match.engine_backend} kernels" if config.match.engine_backend else ""
    parts = [device.kind, f"{device.cores} cores" if device.cores else "", *device.isa]
    facts = ", ".join(part for part in parts if part)
    lines = [
        f"Target      {target.name} ({target.dtype}, {target.num_parameters / 1e6:.0f} M "
        "parameters)",
        f"Device      {device.name} ({facts})",
        f"Measured in {config.match.engine} {config.match.engine_version}{kernels}",
        f"Workload    {workload.source}, {workload.num_requests} requests",
        f"Loaded      {loaded(config.envelope)}",
        f"Generation  {identity.generation} of {scope}, epoch {identity.epoch}, "
        f"run {config.run_id}",
        f"Published   {identity.created:%Y-%m-%d %H:%M} UTC, "
        f"{words.length(now - identity.created)} ago; {_validity(config, now)}",
    ]
    if workload.source == "default":
        lines.append(f"Warning     {words.DEFAULT_WORKLOAD}")
    return lines


def loaded(envelope: EnvelopeModel) -> str:
    """The restart-class part of a document in words."""
    if envelope.method == "none":
        return "no drafter (speculation off)"
    temperature = envelope.draft_temperature
    sampling = "as the request" if temperature is None else f"{temperature:g}"
    return (
        f"{envelope.drafter}, K up to {envelope.max_num_speculative_tokens}, "
        f"draft temperature {sampling}"
    )


def choices_table(config: PublishedConfig) -> Table:
    """One row per measured batch size; where it is off, one more for the best that was tried."""
    table = new_table(f"Choice per measured batch size (workload: {config.workload.source})")
    add_columns(table, "batch\nsize", figures=True)
    add_columns(table, "choice")
    for kind in ("off\nmeasured", "on\nmeasured", "on\npredicted"):
        add_columns(table, f"{kind}\ntokens/s", figures=True)
    add_columns(table, f"speed-up over off\n({100 * config.policy.confidence:g} % interval)")
    add_columns(table, "status")
    for one in config.evidence:
        _add_choice(table, one)
    return table


def _add_choice(table: Table, one: CellEvidenceModel) -> None:
    chosen = arm_of_evidence(one)
    best, figures = one.best_candidate, one.best_candidate_measured
    # Off is the baseline itself: its own speed is what the best candidate was compared with.
    baseline = one.measured or figures
    table.add_row(
        str(one.batch_size),
        chosen.label() if chosen.is_off or chosen.speculates else f"{chosen.label()} (off)",
        words.rate(baseline.baseline_tokens_per_s if baseline else None),
        words.rate(one.measured.candidate_tokens_per_s if one.measured else None),
        words.rate(None if chosen.is_off else one.predicted_tokens_per_s),
        words.speed_up(one.measured),
        one.status,
    )
    if best is not None and figures is not None and best.config() != chosen:
        table.add_row(
            "",
            f"  best tried: {best.config().label()}",
            words.rate(figures.baseline_tokens_per_s),
            words.rate(figures.candidate_tokens_per_s),
            words.NONE,
            words.speed_up(figures),
            "not used",
        )


def schedule_table(config: PublishedConfig) -> Table:
    """K for every batch size, the ones that were never measured included."""
    table = new_table(f"Schedule for every batch size (workload: {config.workload.source})")
    add_columns(table, "batch size", "K", figures=True)
    add_columns(table, "how", "rests on", "status")
    how = {None: "speculates", "k0": "off, drafter loaded", "unload": "off, no drafter loaded"}
    for cell in config.schedule:
        table.add_row(
            words.span(cell),
            str(cell.num_speculative_tokens),
            how[cell.off_mode],
            "the rule below" if cell.measured_at is None else "a measurement",
            cell.status,
        )
    return table


def _validity(config: PublishedConfig, now: datetime) -> str:
    identity = config.identity
    left = words.length(identity.expires - now)
    if now >= identity.expires:
        return f"EXPIRED {left} ago (on expiry: {identity.on_expiry}): run `spectune tune`"
    due = ", due for another look" if now >= identity.refresh_after else ""
    return f"expires in {left}{due}"

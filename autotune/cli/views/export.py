"""What goes with an export, for people."""

from __future__ import annotations

import json

from autotune.cli.views import words
from autotune.cli.views.publication import loaded
from autotune.document import EnvelopeModel
from autotune.render.plan import VllmPlan
from autotune.render.vllm import Offer


def export_lines(plan: VllmPlan, published: EnvelopeModel) -> list[str]:
    """Refusals, the offer with its figures, and notes, one line each."""
    export = plan.export
    lines = [f"refused: {reason}" for reason in export.refused]
    if export.offered is not None:
        lines += _offer_lines(export.offered)
    elif plan.speculative_config is None and published.method == "none":
        lines.append("note: speculation off is published: start vLLM without --speculative-config")
    lines += [f"note: {text}" for text in export.notes]
    if plan.draft is not None:
        lines.append(f"note: the draft's folder is {plan.draft.path}")
    return lines


def _offer_lines(offer: Offer) -> list[str]:
    lines = [f"offered instead: {loaded(offer.candidate.envelope)}; {offer.reason}"]
    lines += [
        f"offered, batch size {row.batch_size}: K = {row.num_speculative_tokens}, "
        f"{words.speed_up(row.measured)} over speculation off, {row.status}"
        for row in offer.candidate.evidence
    ]
    value = (
        "start vLLM without --speculative-config"
        if offer.speculative_config is None
        else json.dumps(offer.speculative_config)
    )
    return [*lines, f"offered, to be taken with --offer: {value}"]

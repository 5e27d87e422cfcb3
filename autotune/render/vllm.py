"""A published document as vLLM's `--speculative-config` value.

Follows vLLM 0.24 and later, checked against 0.32. Its batch-size table holds inclusive
`[lo, hi, K]` entries; it starts at 1, and a gap or the sizes beyond the last entry continue the
previous K, so every entry up to the server's `--max-num-seqs` is written out, K = 0 included.
vLLM lowers a K above `num_speculative_tokens` without a word; here that is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.document import Cell, EnvelopeModel, PublishedConfig
from autotune.render.candidate import OFF_CANDIDATE, Candidate

DEFAULT_MAX_NUM_SEQS = 256
_NGRAM_FIELDS = ("prompt_lookup_min", "prompt_lookup_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The best that vLLM can express in place of a refused document.

    Attributes:
        candidate: The envelope, its schedule, and its own figures (none if unmeasured).
        speculative_config: As in `VllmExport`.
        reason: Why this one; says so where it has no figures.
    """

    candidate: Candidate
    speculative_config: dict[str, object] | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmExport:
    """What `spectune export --format vllm` has to say.

    Attributes:
        speculative_config: Value of `--speculative-config`, ready for JSON. None means: start
            vLLM without it, unless something was refused.
        refused: What vLLM cannot express, each by name and with the reason. Empty when
            `speculative_config` is the published document.
        notes: What the reader should know before using the export (or the offer).
        offered: What to use instead; None exactly when nothing was refused.
    """

    speculative_config: dict[str, object] | None
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    offered: Offer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """The facts of the vLLM server that limit what it can be told."""

    max_num_seqs: int
    max_k: int | None
    draft_folders: Mapping[str, Path]


def render_vllm(
    config: PublishedConfig,
    *,
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
    max_k: int | None = None,
    draft_folders: Mapping[str, Path] | None = None,
    alternatives: Sequence[Candidate] = (),
) -> VllmExport:
    """Say what vLLM can be told of a document, and what it cannot.

    Args:
        config: The published document.
        max_num_seqs: The server's `--max-num-seqs`: the table ends there.
        max_k: Largest K the server takes, or None for no limit of its own.
        draft_folders: Drafter name -> folder in Hugging Face layout, for every drafter with
            weights that may be rendered. The folders need not exist yet.
        alternatives: Other envelopes of the same run, looked at only on a refusal.

    Raises:
        ValueError: A limit is below 1, a drafter with weights has no folder, an n-gram drafter
            lacks a lookup length, the schedule does not cover 1..`max_num_seqs`, or figures
            belong to another envelope.
    """
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs = {max_num_seqs}: must be 1 or more")
    if max_k is not None and max_k < 1:
        raise ValueError(f"max_k = {max_k}: must be 1 or more; 0 is a server without speculation")
    server = _Server(max_num_seqs=max_num_seqs, max_k=max_k, draft_folders=draft_folders or {})
    published = Candidate(
        envelope=config.envelope, schedule=config.schedule, evidence=config.evidence
    )
    refused = _refusals(published, server)
    if not refused:
        speculative_config = _speculative_config(published, server)
        return VllmExport(
            speculative_config=speculative_config,
            notes=_notes(config, published, speculative_config, server),
        )
    offer = _best_offer(alternatives, server)
    return VllmExport(
        speculative_config=None,
        refused=refused,
        notes=_notes(config, offer.candidate, offer.speculative_config, server),
        offered=offer,
    )


def _entries(schedule: Sequence[Cell], max_num_seqs: int) -> list[tuple[int, int, int]]:
    """Inclusive `(lo, hi, K)` entries from 1 to exactly `max_num_seqs`."""
    entries: list[tuple[int, int, int]] = []
    expected = 1
    for cell in schedule:
        if cell.bs_lo != expected:
            break
        hi = max_num_seqs if cell.bs_hi is None else min(cell.bs_hi, max_num_seqs)
        entries.append((cell.bs_lo, hi, cell.num_speculative_tokens))
        if hi == max_num_seqs:
            return entries
        expected = hi + 1
    raise ValueError(
        f"schedule: no cell starts at batch size {expected}, and vLLM would continue the K "
        "before it; publish the document again with contiguous cells and a tail"
    )


def _speculates(envelope: EnvelopeModel, entries: Sequence[tuple[int, int, int]]) -> bool:
    return envelope.method != "none" and any(k for _, _, k in entries)


def _maximum(envelope: EnvelopeModel, server: _Server) -> int:
    """The `num_speculative_tokens` to start with: the envelope's, within the server's limit."""
    if server.max_k is None:
        return envelope.max_num_speculative_tokens
    return min(envelope.max_num_speculative_tokens, server.max_k)


def _refusals(candidate: Candidate, server: _Server) -> tuple[str, ...]:
    """What vLLM cannot express of a candidate; empty when it can take it."""
    envelope = candidate.envelope
    entries = _entries(candidate.schedule, server.max_num_seqs)
    if not _speculates(envelope, entries):
        return ()
    refused: list[str] = []
    temperature = envelope.draft_temperature
    if envelope.method == "ngram":
        refused.extend(
            f"{name} {value} ({envelope.drafter}): vLLM's n-gram drafter has no such setting"
            for name, value in sorted(envelope.draft_parameters.items())
            if name not in _NGRAM_FIELDS
        )
    elif temperature is not None and temperature != 0.0:
        refused.append(
            f"draft_temperature {temperature:g} ({envelope.drafter}): vLLM drafts greedily or at "
            "the temperature of the request, nothing else"
        )
    maximum = _maximum(envelope, server)
    whose = "server's" if maximum == server.max_k else "envelope's"
    refused.extend(
        f"num_speculative_tokens {k} at batch sizes {lo}..{hi}: above the {whose} maximum of "
        f"{maximum}, to which vLLM would lower it without a word"
        for lo, hi, k in entries
        if k > maximum
    )
    return tuple(refused)


def _speculative_config(candidate: Candidate, server: _Server) -> dict[str, object] | None:
    """The value for a candidate without refusals; None where vLLM should load no drafter."""
    entries = _entries(candidate.schedule, server.max_num_seqs)
    if not _speculates(candidate.envelope, entries):
        return None
    return {
        **_method_fields(candidate.envelope, server.draft_folders),
        "num_speculative_tokens": _maximum(candidate.envelope, server),
        "num_speculative_tokens_per_batch_size": [list(entry) for entry in entries],
    }


def _method_fields(envelope: EnvelopeModel, draft_folders: Mapping[str, Path]) -> dict[str, object]:
    if envelope.method == "ngram":
        for name in _NGRAM_FIELDS:
            if name not in envelope.draft_parameters:
                raise ValueError(
                    f"{name} of drafter {envelope.drafter} is missing, and vLLM would put in a "
                    "value of its own; publish the document again"
                )
        lookup = {name: envelope.draft_parameters[name] for name in _NGRAM_FIELDS}
        return {"method": "ngram", **lookup}
    folder = draft_folders.get(envelope.drafter)
    if folder is None:
        raise ValueError(
            f"drafter {envelope.drafter}: vLLM loads it from a folder; name one in draft_folders"
        )
    sampling = "probabilistic" if envelope.draft_temperature is None else "greedy"
    method = "eagle3" if envelope.method == "eagle3" else "draft_model"
    return {"method": method, "model": str(folder), "draft_sample_method": sampling}


def _best_offer(alternatives: Sequence[Candidate], server: _Server) -> Offer:
    """The best measured envelope that vLLM can express; off where none gained.

    What was never measured is not offered: it could be slower than off.
    """
    measured = [a for a in alternatives if a.is_measured and not _refusals(a, server)]
    best = max(
        measured, key=lambda other: other.total_log_gain(server.max_num_seqs), default=OFF_CANDIDATE
    )
    reason = "the best measured of what vLLM can express; the figures are its own"
    if best.total_log_gain(server.max_num_seqs) <= 0.0:
        best = OFF_CANDIDATE
        reason = "nothing that vLLM can express was shown to gain over speculation off"
    return Offer(
        candidate=best, speculative_config=_speculative_config(best, server), reason=reason
    )


def _notes(
    config: PublishedConfig,
    used: Candidate,
    speculative_config: dict[str, object] | None,
    server: _Server,
) -> tuple[str, ...]:
    notes: list[str] = []
    if config.workload.source == "default":
        notes.append(
            "workload: default. Tuned on the requests shipped with spectuned, not on your "
            "traffic; tune on your own before serving with this"
        )
    if used.is_measured:
        notes.append(
            "measured_in: own_engine. The figures come from spectuned's engine on "
            f"{config.match.device.name}, not from vLLM"
        )
    if speculative_config is not None:
        notes.extend(_serving_notes(used, server))
    elif used.envelope.method != "none":
        notes.append(
            f"up to --max-num-seqs {server.max_num_seqs} the schedule never speculates: start "
            "vLLM without --speculative-config"
        )
    return tuple(notes)


def _serving_notes(used: Candidate, server: _Server) -> list[str]:
    """What holds once vLLM runs with the table."""
    notes = [
        f"start vLLM with --max-num-seqs {server.max_num_seqs}: the table ends there, and vLLM "
        "continues its last K beyond",
        "with --data-parallel-size above 1 vLLM drops the table and always drafts "
        f"{_maximum(used.envelope, server)}",
        "while it speculates, vLLM does not serve min_p and logit_bias as asked",
    ]
    entered = [cell for cell in used.schedule if cell.bs_lo <= server.max_num_seqs]
    if len(entered) < len(used.schedule):
        beyond = used.schedule[len(entered)].bs_lo
        notes.append(f"left out, beyond --max-num-seqs: batch sizes from {beyond} up")
    provisional = [_span(cell) for cell in entered if cell.status == "provisional"]
    if provisional:
        notes.append(f"provisional, not yet validated: batch sizes {', '.join(provisional)}")
    if any(cell.num_speculative_tokens == 0 for cell in entered):
        notes.append("at K = 0 the drafter stays in memory, and vLLM may still run it")
    if used.envelope.method == "layer_skip":
        notes.append(
            f"{used.envelope.drafter}: vLLM loads the draft folder beside the target, so these "
            "layers are in memory twice and have a KV cache of their own"
        )
    return notes


def _span(cell: Cell) -> str:
    return f"{cell.bs_lo} and up" if cell.bs_hi is None else f"{cell.bs_lo}..{cell.bs_hi}"

"""From a published document to what a serving engine is started with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.document import EnvelopeModel, PublishedConfig
from autotune.errors import ConfigError
from autotune.render.alternatives import alternatives, drafter_parts
from autotune.render.candidate import Candidate
from autotune.render.vllm import VllmExport, render_vllm
from autotune.report.arms import tried_arms

if TYPE_CHECKING:
    from store.repository import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFolder:
    """A drafter made of the target's parts, which a server needs as a whole folder.

    Attributes:
        num_layers: First layers of the target that it consists of; None where it has a source.
        source: Checkpoint without the embedding that it shares with the target; None for layers.
        path: Where the server will look for it. The name holds the target's fingerprint, and the
            folder appears whole or not at all, so one that exists need not be written again.
    """

    num_layers: int | None = None
    source: Path | None = None
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """What to start vLLM with.

    Attributes:
        export: What vLLM can be told of the document, and what it cannot.
        speculative_config: Value of `--speculative-config` for the document or, where it is
            refused, for the offer; None starts vLLM without it.
        draft: The draft folder that this value names, if spectuned has to write it.
    """

    export: VllmExport
    speculative_config: dict[str, object] | None
    draft: DraftFolder | None

    @property
    def refused(self) -> bool:
        """True where the value is that of the offer."""
        return self.export.offered is not None

    def to_json(self) -> dict[str, object]:
        """Everything as JSON values; `speculative_config` is the document's alone."""
        offer = self.export.offered
        return {
            "format": "vllm",
            "speculative_config": self.export.speculative_config,
            "draft_folder": None if self.draft is None else str(self.draft.path),
            "refused": list(self.export.refused),
            "notes": list(self.export.notes),
            "offered": None
            if offer is None
            else {
                "speculative_config": offer.speculative_config,
                "reason": offer.reason,
                "envelope": offer.candidate.envelope.model_dump(mode="json"),
                "schedule": [cell.model_dump(mode="json") for cell in offer.candidate.schedule],
                "evidence": [row.model_dump(mode="json") for row in offer.candidate.evidence],
            },
        }


def plan_vllm(
    config: PublishedConfig,
    open_store: Callable[[], Store],
    drafts: Path,
    *,
    max_num_seqs: int,
    max_k: int | None = None,
) -> VllmPlan:
    """Say what to start vLLM with; on a refusal, the best that the run measured instead.

    Args:
        config: The document.
        open_store: Opens the store with the document's run; called on a refusal only.
        drafts: Folder that drafts made of the target are, or will be, written into.
        max_num_seqs: The server's `--max-num-seqs`.
        max_k: Largest K the server takes, or None.

    Raises:
        ConfigError: A limit is out of range, or the document lacks what vLLM needs.
        StoreError: The run cannot be read.
    """

    def render(others: tuple[Candidate, ...]) -> VllmExport:
        envelopes = (config.envelope, *(other.envelope for other in others))
        try:
            return render_vllm(
                config,
                max_num_seqs=max_num_seqs,
                max_k=max_k,
                draft_folders=_draft_folders(config, envelopes, drafts),
                alternatives=others,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error

    export = render(())
    envelope, value = config.envelope, export.speculative_config
    if export.refused:
        export = render(_alternatives(config, open_store, max_k))
    if export.offered is not None:
        envelope = export.offered.candidate.envelope
        value = export.offered.speculative_config
    draft = None if value is None else _draft_folder(config, envelope, drafts)
    return VllmPlan(export=export, speculative_config=value, draft=draft)


def provide_draft(
    config: PublishedConfig, draft: DraftFolder, target: str | None, progress: Callable[[str], None]
) -> None:
    """Write a drafter made of the target's parts, unless it is there.

    Args:
        config: The document that needs it.
        draft: What to write.
        target: The document's target as a folder or repository; None for the name in it.
        progress: Told about steps that take a while.

    Raises:
        ConfigError: `target` is another model than the document's.
        EngineError: The target cannot be read, or the folder cannot be written.
    """
    if draft.path.exists():
        return
    from engine.cache_folder import default_cache
    from engine.checkpoint.fingerprint import weights_fingerprint
    from engine.checkpoint.hub import resolve_model
    from engine.checkpoint.layer_skip_export import write_layer_skip
    from engine.training.export import assemble

    wanted = config.match.target
    folder = resolve_model(target or wanted.name, default_cache(), progress)
    found = weights_fingerprint(folder)
    if found != wanted.fingerprint:
        raise ConfigError(
            f"target = {folder}: its fingerprint {found[:16]} is not {wanted.fingerprint[:16]}, "
            f"that of the published {wanted.name}; name the right one with --target"
        )
    if draft.source is not None:
        assemble(draft.source, folder, draft.path)
    elif draft.num_layers is not None:
        write_layer_skip(folder, draft.num_layers, draft.path)


def _alternatives(
    config: PublishedConfig, open_store: Callable[[], Store], max_k: int | None
) -> tuple[Candidate, ...]:
    with open_store() as store:
        settings = store.run(config.run_id).settings
        arms = tried_arms(
            store.measurements(config.run_id), predictions=store.predictions(config.run_id)
        )
    return alternatives(
        arms,
        drafter_parts([arm.config.drafter for arm in arms], settings),
        confidence=config.policy.confidence,
        hot_margin=config.policy.hot_margin,
        max_num_speculative_tokens=max_k,
    )


def _draft_folders(
    config: PublishedConfig, envelopes: Iterable[EnvelopeModel], drafts: Path
) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for envelope in envelopes:
        made = _draft_folder(config, envelope, drafts)
        if made is not None:
            folders[envelope.drafter] = made.path
        elif envelope.method in ("draft_model", "eagle3"):
            folders[envelope.drafter] = Path(str(envelope.draft_parameters["model"]))
    return folders


def _shares_the_embedding(folder: Path) -> bool:
    from engine.checkpoint.safetensors_reader import EMBEDDING, brings

    return not brings(folder, EMBEDDING)


def _draft_folder(
    config: PublishedConfig, envelope: EnvelopeModel, drafts: Path
) -> DraftFolder | None:
    """What has to be written for an envelope; None where its folder is whole, or it needs none."""
    path = drafts / f"{envelope.drafter}-of-{config.match.target.fingerprint[:16]}"
    if envelope.method == "layer_skip":
        return DraftFolder(num_layers=int(envelope.draft_parameters["num_layers"]), path=path)
    if envelope.method == "draft_model":
        source = Path(str(envelope.draft_parameters["model"]))
        # A folder that is not here is the server's own affair: it may lie on another host.
        if source.is_dir() and _shares_the_embedding(source):
            return DraftFolder(source=source, path=path)
    return None

"""What vLLM is started with when the published drafter lies in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.document import EnvelopeModel, PublishedConfig
from autotune.errors import ConfigError
from autotune.render.plan import VllmPlan, plan_vllm, provide_draft
from engine.checkpoint.config import read_config
from engine.checkpoint.fingerprint import weights_fingerprint
from engine.checkpoint.model_folder import new_folder
from engine.checkpoint.safetensors_reader import read_weights
from engine.training.export import write_eagle3, write_pruned
from engine.training.pruned import new_draft
from engine.training.teacher import Teacher
from store.repository import Store
from tests.documents import document, envelope
from tests.support.training import tiny_head, tiny_teacher
from tests.tiny_llama import write_tiny_llama


def no_store() -> Store:
    """Stands for a store that must not be opened."""
    raise AssertionError("only a refusal reads the run")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A tiny target."""
    write_tiny_llama(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def pruned(tmp_path: Path, target: Path) -> Path:
    """A draft of one of its layers, stored without what the target lends."""
    config = read_config(target)
    teacher = Teacher.from_weights(config, read_weights(target, config), 32)
    draft = new_draft(replace(config, num_layers=1), teacher, (0,))
    with new_folder(tmp_path / "pruned") as folder:
        write_pruned(draft, target, folder)
    return tmp_path / "pruned"


def published(loaded: EnvelopeModel, target: Path) -> PublishedConfig:
    """A document for this very target."""
    config = document(loaded)
    wanted = config.match.target.model_copy(update={"fingerprint": weights_fingerprint(target)})
    match = config.match.model_copy(update={"target": wanted})
    return config.model_copy(update={"match": match})


def plan(config: PublishedConfig, drafts: Path) -> VllmPlan:
    """For a server of 64 sequences."""
    return plan_vllm(config, no_store, drafts, max_num_seqs=64)


def test_a_draft_that_shares_the_embedding_is_made_whole(
    tmp_path: Path, target: Path, pruned: Path
) -> None:
    """VLLM is told a folder that `provide_draft` writes, and which then loads as a model."""
    loaded = envelope("small", "draft_model", 4, parameters={"model": str(pruned)})
    config = published(loaded, target)
    found = plan(config, tmp_path / "drafts")
    assert found.draft is not None
    assert found.speculative_config is not None
    assert found.speculative_config["method"] == "draft_model"
    assert found.speculative_config["model"] == str(found.draft.path)
    provide_draft(config, found.draft, str(target), lambda _: None)
    whole = read_config(found.draft.path)
    assert read_weights(found.draft.path, whole)


def test_the_wrong_target_is_refused(tmp_path: Path, target: Path, pruned: Path) -> None:
    """A draft made whole with another model's embedding would draft nonsense."""
    write_tiny_llama(tmp_path / "other", num_layers=3)
    config = published(
        envelope("small", "draft_model", 4, parameters={"model": str(pruned)}), target
    )
    found = plan(config, tmp_path / "drafts")
    assert found.draft is not None
    with pytest.raises(ConfigError, match="fingerprint"):
        provide_draft(config, found.draft, str(tmp_path / "other"), lambda _: None)
    assert not found.draft.path.exists()


def test_a_whole_draft_is_named_as_it_is(tmp_path: Path, target: Path) -> None:
    """A folder with an embedding of its own needs nothing written."""
    loaded = envelope("twin", "draft_model", 4, parameters={"model": str(target)})
    found = plan(published(loaded, target), tmp_path / "drafts")
    assert found.draft is None
    assert found.speculative_config is not None
    assert found.speculative_config["model"] == str(target)


def test_a_head_is_named_by_its_method(tmp_path: Path, target: Path) -> None:
    """VLLM takes an EAGLE-3 head from its own folder: the target lends it the embedding."""
    with new_folder(tmp_path / "head") as folder:
        write_eagle3(tiny_head(tiny_teacher()), folder)
    loaded = envelope("head", "eagle3", 4, 0.0, parameters={"model": str(tmp_path / "head")})
    found = plan(published(loaded, target), tmp_path / "drafts")
    assert found.draft is None
    assert found.speculative_config is not None
    assert found.speculative_config["method"] == "eagle3"
    assert found.speculative_config["model"] == str(tmp_path / "head")
    assert found.speculative_config["draft_sample_method"] == "greedy"

"""Drafters from their descriptions: what fits is built, what does not is refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from engine.checkpoint.config import read_config
from engine.checkpoint.safetensors_reader import read_weights
from engine.drafters.base import Drafter
from engine.drafters.factory import DrafterSpec, build_drafter, layer_skip, ngram, weight_bytes
from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.errors import CheckpointError, EngineError, VocabularyMismatchError
from engine.kv_cache import KvCache
from engine.model import Transformer
from tests.support.checkpoints import A11, H0, changed_copy, disturbed, resized
from tests.support.tiny_models import request

MAX_LEN = 64
SLOTS = 2
SMALL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
PROMPT = tuple(b"the cat sat on the mat, the cat")


def engine_of(
    folder: Path = H0, *, max_len: int = MAX_LEN, dtype: torch.dtype = torch.float32
) -> Engine:
    """An engine around a checkpoint, without end tokens."""
    config = read_config(folder)
    model = Transformer.from_weights(config, read_weights(folder, config), dtype=dtype)
    return Engine(model, eos_token_ids=(), max_batch_size=SLOTS, max_len=max_len)


def draft(folder: Path, name: str = "small") -> DrafterSpec:
    """A draft model by name."""
    return DrafterSpec(name=name, method="draft_model", folder=folder)


def generated(
    engine: Engine, drafter: Drafter | None, k: int, *, temperature: float = 0.0, seed: int = 0
) -> list[int]:
    """An answer of 30 tokens."""
    engine.load(drafter)
    asked = request(PROMPT, temperature=temperature, max_tokens=30, seed=seed)
    sequences, _ = engine.generate([asked], batch_size=1, num_speculative_tokens=k)
    return sequences[0].output_tokens


def test_every_method_gives_its_drafter() -> None:
    """Under the name of the description."""
    engine = engine_of()

    built = {
        spec.name: build_drafter(spec, engine, H0) for spec in (ngram(), layer_skip(1), draft(H0))
    }

    assert [type(drafter) for drafter in built.values()] == [
        NgramDrafter,
        LayerSkipDrafter,
        ModelDrafter,
    ]
    assert [drafter.name for drafter in built.values()] == ["ngram", "layer-skip-1", "small"]


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        (ngram(), {"prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        (ngram(1, 3), {"prompt_lookup_min": 1, "prompt_lookup_max": 3}),
        (layer_skip(8), {"num_layers": 8}),
        (draft(Path("models/small")), {"model": "models/small"}),
    ],
)
def test_parameters_tell_a_serving_layer_all(
    spec: DrafterSpec, parameters: dict[str, object]
) -> None:
    """What is published with an envelope."""
    assert spec.parameters() == parameters


def test_a_draft_with_other_tokens_is_refused() -> None:
    """A11: equal sizes, other tokens: the first differing id and both tokens are named."""
    with pytest.raises(VocabularyMismatchError) as caught:
        build_drafter(draft(A11 / "draft"), engine_of(A11 / "target"), A11 / "target")

    message = str(caught.value)
    assert re.search(r"\bid 97: 'e' in the draft, 'a' in the target", message)
    assert str(A11 / "draft") in message


def test_a_draft_with_a_shorter_context_is_refused(tmp_path: Path) -> None:
    """Its rotary tables end before the target's slots do."""
    short = changed_copy(tmp_path / "short", max_position_embeddings=32)

    with pytest.raises(CheckpointError, match=r"short: .*supports 32 positions.*served with 64"):
        build_drafter(draft(short), engine_of(), H0)

    assert build_drafter(draft(short), engine_of(max_len=32), H0).name == "small"


@pytest.mark.parametrize("num_layers", [-1, 0, 2, 9])
def test_layer_skip_needs_a_proper_part_of_the_target(num_layers: int) -> None:
    """H0 has two layers, so one is the only choice."""
    with pytest.raises(EngineError, match=rf"needs 1 to 1 layers, got {num_layers}"):
        build_drafter(layer_skip(num_layers), engine_of(), H0)


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2)])
def test_ngram_sizes_must_make_sense(min_n: int, max_n: int) -> None:
    """At least one token, and not upside down."""
    with pytest.raises(EngineError, match=f"{min_n}..{max_n}"):
        build_drafter(ngram(min_n, max_n), engine_of(), H0)


def test_a_draft_model_needs_a_folder() -> None:
    """A description without one is refused by name."""
    with pytest.raises(EngineError, match="nameless is a checkpoint and needs a folder"):
        build_drafter(DrafterSpec(name="nameless", method="draft_model"), engine_of(), H0)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(CheckpointError, match="nowhere"):
        build_drafter(draft(tmp_path / "nowhere"), engine_of(), H0)


def test_a_draft_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Vocabularies that cannot be compared are not assumed to be equal."""
    folder = tmp_path / "bare"
    shutil.copytree(H0, folder)
    (folder / "tokenizer.json").unlink()

    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        build_drafter(draft(folder), engine_of(), H0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_budget_counts_weights_and_cache(dtype: torch.dtype) -> None:
    """B11: one byte too little is refused with what it needs and has; enough is enough."""
    engine, config = engine_of(dtype=dtype), read_config(H0)
    weights = sum(tensor.numel() for tensor in read_weights(H0, config).values())
    norms = (2 * config.num_layers + 1) * config.hidden_size
    needed = (weights - norms) * dtype.itemsize
    needed += SLOTS * MAX_LEN * KvCache.bytes_per_token(config, dtype)

    drafter = build_drafter(draft(H0), engine, H0, budget_bytes=needed)

    assert drafter.num_bytes == needed
    with pytest.raises(EngineError, match=r"needs 0\.\d MiB for weights and cache, has 0\.\d"):
        build_drafter(draft(H0), engine, H0, budget_bytes=needed - 1)


def test_a_tied_head_counts_as_a_copy(tmp_path: Path) -> None:
    """Packed layers keep their own copy of a tied head."""
    config = read_config(H0)
    tied = read_config(
        changed_copy(
            tmp_path / "tied",
            lambda weights: {k: v for k, v in weights.items() if k != "lm_head.weight"},
            tie_word_embeddings=True,
        )
    )

    assert weight_bytes(tied, torch.float32) == weight_bytes(config, torch.float32)


def test_drafters_without_weights_need_no_budget() -> None:
    """N-gram and layer-skip share everything."""
    engine = engine_of()

    for spec in (ngram(), layer_skip(1)):
        assert build_drafter(spec, engine, H0, budget_bytes=0).num_bytes == 0


@pytest.mark.parametrize("vocab_size", [300, 258])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_vocabularies_stay_inside_what_is_shared(
    tmp_path: Path, vocab_size: int, temperature: float
) -> None:
    """A draft with more or fewer rows but the same tokenizer never drafts a foreign id."""
    folder = changed_copy(
        tmp_path / "draft", resized(vocab_size), **SMALL_IDS, vocab_size=vocab_size
    )
    engine = engine_of()
    drafter = build_drafter(draft(folder), engine, H0)
    engine.load(drafter)
    engine.admit(0, request(PROMPT, temperature=temperature, max_tokens=25, seed=3))

    drafted: set[int] = set()
    while engine.sequences[0].finish_reason is None:
        proposal = drafter.propose([0], [engine.sequences[0]], [4], None)
        drafted |= set(proposal.tokens[0])
        if proposal.probs is not None:
            assert proposal.probs.shape[2] == 260
            assert not proposal.probs[:, :, vocab_size:].any()
        engine.round()

    assert drafted
    assert max(drafted) < min(vocab_size, 260)


@pytest.mark.parametrize("vocab_size", [300, 258, 200])
def test_padded_vocabularies_keep_the_greedy_answer(tmp_path: Path, vocab_size: int) -> None:
    """Also where the target emits ids that the draft has no row for."""
    target = changed_copy(tmp_path / "target", resized(260))
    engine = engine_of(target)
    folder = changed_copy(
        tmp_path / "draft", resized(vocab_size), **SMALL_IDS, vocab_size=vocab_size
    )
    drafter = build_drafter(draft(folder), engine, H0)

    plain = generated(engine, None, 0)

    for k in (1, 4):
        assert generated(engine, drafter, k) == plain


def test_a_draft_of_another_checkpoint_is_lossless(tmp_path: Path) -> None:
    """Read from disk, with a context it may fill to the end."""
    folder = changed_copy(tmp_path / "draft", disturbed)
    engine = engine_of()
    drafter = build_drafter(draft(folder), engine, H0)

    assert generated(engine, drafter, 5) == generated(engine, None, 0)

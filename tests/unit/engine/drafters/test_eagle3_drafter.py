"""The EAGLE-3 drafter in the engine: every proposal is what the slow head would draft."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.base import Proposal
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.eagle3.head import Eagle3Head
from engine.engine import Engine
from engine.errors import EngineError
from engine.kv_cache import KvCache
from engine.layout import make_layout
from engine.record import record
from engine.request import Sequence
from tests.support.eagle3_reference import Array, HeadShape, forced_chain
from tests.support.reference import reference_probs
from tests.support.tiny_models import (
    answer,
    random_prompt,
    request,
    tiny_config,
    tiny_engine,
    tiny_model,
)

VOCAB = 12
COLUMNS = [0, 1, 3, 4, 5, 7, 8, 10, 11]
LAYERS = (0, 1, 3)
TARGET = tiny_model(7)
PROMPTS = [random_prompt(i, length) for i, length in enumerate((1, 6, 13))]
MIXED_K = (2, 0, 0, 3, 1, 4, 0, 2)


def head_of() -> Eagle3Head:
    """A seeded head that reads three states of the target."""
    head = Eagle3Head(
        Eagle3Config(
            decoder=tiny_config(num_layers=1),
            draft_vocab_size=len(COLUMNS),
            target_hidden_size=16,
            feature_layers=LAYERS,
            norm_before_residual=False,
        )
    )
    generator = torch.Generator().manual_seed(22)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise + (parameter.dim() == 1))
        head.d2t.copy_(torch.tensor(COLUMNS) - torch.arange(len(COLUMNS)))
        head.t2d.copy_(torch.isin(torch.arange(VOCAB), torch.tensor(COLUMNS)))
    return head.requires_grad_(False)


HEAD = head_of()


def eagle3(engine: Engine) -> Eagle3Drafter:
    """The head for an engine's slots."""
    cache = KvCache.allocate(
        HEAD.config.decoder,
        engine.cache.num_slots,
        engine.max_len,
        torch.float32,
        torch.device("cpu"),
    )
    return Eagle3Drafter(
        "eagle3", HEAD, TARGET.embedding, cache, backend="torch", num_weight_bytes=1000
    )


def admitted(temperatures: tuple[float, ...]) -> tuple[Engine, Eagle3Drafter]:
    """Three requests that have their first token, and their drafter."""
    engine = tiny_engine(TARGET, slots=4, max_len=80)
    drafter = eagle3(engine)
    engine.load(drafter)
    for slot, (prompt, temperature) in enumerate(zip(PROMPTS, temperatures, strict=True)):
        engine.admit(
            slot, request(prompt, temperature=temperature, top_k=6, seed=slot, max_tokens=50)
        )
    return engine, drafter


def states_of(tokens: list[int]) -> Tensor:
    """[tokens, width], by one fresh pass of the target."""
    cache = KvCache.allocate(TARGET.config, 1, len(tokens), torch.float32, torch.device("cpu"))
    layout = make_layout([0], [0], [len(tokens)], device=torch.device("cpu"))
    with torch.inference_mode():
        return TARGET.forward_with_features(torch.tensor(tokens), layout, cache, LAYERS)[1]


def slow_logits(tokens: list[int], drafts: list[int]) -> Array:
    """[drafts, draft vocab]: the head from scratch, over the target's states of the whole text."""
    decoder = HEAD.config.decoder
    weights = {name: value.double().numpy() for name, value in HEAD.state_dict().items()}
    return forced_chain(
        weights,
        HeadShape(
            num_heads=decoder.num_heads,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            eps=decoder.rms_norm_eps,
            rope_theta=decoder.rope_theta,
            norm_before_residual=False,
        ),
        TARGET.embedding.double().numpy(),
        states_of(tokens[:-1]).double().numpy(),
        [*tokens, *drafts],
        len(tokens) - 2,
        len(drafts),
    )[1]


def check(
    proposal: Proposal, sequences: list[Sequence], draft_temperature: float | None = None
) -> int:
    """Compare each token and each distribution with the slow head's; how many there were."""
    for row, sequence in enumerate(sequences):
        drafts = proposal.tokens[row]
        if not drafts:
            continue
        params = sequence.request.params
        used = params.temperature if draft_temperature is None else draft_temperature
        used = 0.0 if params.is_greedy else used
        for step, logits in enumerate(slow_logits(sequence.tokens, drafts)):
            q = [0.0] * VOCAB
            for column, mass in enumerate(reference_probs(logits.tolist(), used, 6)):
                q[COLUMNS[column]] = mass
            assert q[drafts[step]] > 0
            if proposal.probs is None:
                assert q[drafts[step]] == 1.0
            else:
                assert proposal.probs[row, step].tolist() == pytest.approx(q, abs=2e-4)
    return sum(len(drafts) for drafts in proposal.tokens)


def watch(drafter: Eagle3Drafter, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Check every proposal that the engine asks for; tells how many drafts each had."""
    propose, told = drafter.propose, []

    def checked(
        slots: list[int],
        sequences: list[Sequence],
        limits: list[int],
        draft_temperature: float | None,
    ) -> Proposal:
        proposal = propose(slots, sequences, limits, draft_temperature)
        assert [len(draft) for draft in proposal.tokens] == limits
        told.append(check(proposal, sequences, draft_temperature))
        return proposal

    monkeypatch.setattr(drafter, "propose", checked)
    return told


@pytest.mark.parametrize("draft_temperature", [None, 0.0, 0.6])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.8)], ids=str)
def test_every_proposal_is_the_slow_heads(
    temperatures: tuple[float, ...],
    draft_temperature: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After accepted drafts, rejected ones and idle rounds, rows at their own lengths.

    So what drafting wrote into the cache is replaced by what the target's states give.
    """
    engine, drafter = admitted(temperatures)
    told = watch(drafter, monkeypatch)
    accepted = rejected = 0

    for k in MIXED_K:
        for outcome in engine.round(k, draft_temperature):
            accepted += outcome.num_accepted
            rejected += outcome.num_drafted - outcome.num_accepted

    assert told == [3 * k for k in MIXED_K if k]
    assert rejected > 0
    assert accepted > 0


def test_limits_are_exact_row_by_row() -> None:
    """Rows draft as many tokens as they may, none included; the others are not disturbed."""
    engine, drafter = admitted((0.0, 0.0, 0.0))
    rows = [engine.sequences[slot] for slot in range(3)]

    proposal = drafter.propose([0, 1, 2], rows, [3, 0, 1], None)

    assert [len(draft) for draft in proposal.tokens] == [3, 0, 1]
    assert check(proposal, rows) == 4


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_output_is_plain(k: int) -> None:
    """To the end of each request, with more requests than slots."""
    engine = tiny_engine(TARGET, slots=2, max_len=40)
    engine.load(eagle3(engine))

    sequences, _ = engine.generate(
        [request(prompt, max_tokens=30) for prompt in PROMPTS],
        batch_size=2,
        num_speculative_tokens=k,
    )

    plain = tiny_engine(TARGET, slots=1, max_len=40)
    assert [s.output_tokens for s in sequences] == [answer(plain, p, 30) for p in PROMPTS]


@pytest.mark.parametrize("num_rounds", range(len(MIXED_K) + 1))
def test_a_sequence_goes_on_in_another_slot(
    num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a snapshot after any round, idle ones and accepted drafts included."""
    engine, drafter = admitted((1.0, 0.0, 0.8))
    for k in MIXED_K[:num_rounds]:
        engine.round(k)
    kept, drafted = engine.cache.snapshot(2), drafter.snapshot(2)
    moved = engine.release(2)

    engine.resume(3, moved, kept, drafted)

    told = watch(drafter, monkeypatch)
    for k in (2, 3):
        engine.round(k)
    assert told == [6, 9]


def test_a_later_snapshot_serves_an_earlier_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same text, however many tokens further."""
    engine, drafter = admitted((0.0, 0.0, 0.0))
    earlier = Sequence(engine.sequences[1].request, list(engine.sequences[1].tokens))
    for k in MIXED_K:
        engine.round(k)
    kept, drafted = engine.cache.snapshot(1), drafter.snapshot(1)

    engine.resume(3, earlier, kept, drafted)

    told = watch(drafter, monkeypatch)
    engine.round(3)
    assert told == [12]


@pytest.mark.parametrize("num_tokens", [1, 4, 11])
def test_an_answer_is_taken_up_from_its_record(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after a recorded answer serves any point of it."""
    engine = tiny_engine(TARGET, slots=2, max_len=60)
    asked = request(PROMPTS[1], max_tokens=12)
    (trajectory,) = record(engine, [asked], batch_size=1, feature_layers=LAYERS)
    drafter = eagle3(engine)
    drafted = drafter.snapshot_of(trajectory)
    engine.load(drafter)
    state = trajectory.resume_at(num_tokens, request(PROMPTS[1], max_tokens=40))

    engine.resume(1, state, trajectory.snapshot, drafted)

    told = watch(drafter, monkeypatch)
    for k in (3, 0, 2):
        engine.round(k)
    assert told == [3, 2]


def test_a_sequence_without_states_is_refused() -> None:
    """The target's states cannot be made up from tokens."""
    engine, _ = admitted((0.0, 0.0, 0.0))
    kept, moved = engine.cache.snapshot(0), engine.release(0)

    with pytest.raises(EngineError, match=r"eagle3: .*without its states"):
        engine.resume(0, moved, kept, None)


def test_a_former_request_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that had a longer request drafts for the next as a fresh one."""
    engine, drafter = admitted((0.0, 0.0, 0.0))
    for k in MIXED_K:
        engine.round(k)
    engine.release(2)
    engine.admit(2, request((4, 4), max_tokens=20))

    told = watch(drafter, monkeypatch)
    engine.round(3)

    assert told == [9]


def test_bytes_count_weights_cache_and_states() -> None:
    """All that the drafter holds beside the target."""
    engine = tiny_engine(TARGET, slots=3, max_len=50)

    per_token = KvCache.bytes_per_token(HEAD.config.decoder, torch.float32) + 4 * 48
    assert eagle3(engine).num_bytes == 1000 + 150 * per_token

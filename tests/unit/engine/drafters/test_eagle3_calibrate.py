"""Whether a head reads the right states: agreement by layer shift, and when it is called wrong.

The decisions are exact functions of counts. Each allows three standard errors, so that a head whose
configured ids are as good as its neighbours' is warned about with probability 0.0013 a neighbour,
and one that is at chance passes with the same probability (normal law, positions independent).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.eagle3.calibrate import Calibration, calibrate
from engine.drafters.eagle3.drafter import Eagle3Drafter
from engine.drafters.eagle3.head import Eagle3Head
from engine.kv_cache import KvCache
from engine.record import Trajectory, record
from tests.support.eagle3 import eagle3_with, fitted_head, random_head
from tests.support.replaying import profiles
from tests.support.tiny_models import (
    random_prompt,
    request,
    tiny_config,
    tiny_engine,
    tiny_model,
)

VOCAB, WIDTH, NUM_LAYERS = 12, 16, 8
CPU = torch.device("cpu")
TEXTS = [random_prompt(seed, 200) for seed in range(5)]
NUM_POSITIONS = 5 * 199


# ---------------------------------------------------------------- a target that tells


def next_of(tokens: Tensor) -> Tensor:
    """What the telling target says after each token."""
    return (5 * tokens + 3) % VOCAB


class TellingTarget:
    """A target whose state of one layer often holds the answer to the next question.

    State X at token t is the token that the target will say after token t + 1, written as a one-hot
    row: the right one at a share of the positions that depends on X, else the one after it.
    """

    config = replace(tiny_config(num_layers=NUM_LAYERS, vocab_size=VOCAB), hidden_size=WIDTH)
    dtype, device = torch.float32, CPU

    def __init__(self, shares: dict[int, float], default: float) -> None:
        """Set the share of right answers in each layer's state."""
        self._shares = [shares.get(layer, default) for layer in range(NUM_LAYERS + 1)]

    def forward_with_features(
        self, tokens: Tensor, layout: object, cache: object, layers: list[int]
    ) -> tuple[Tensor, Tensor]:
        """As in `Transformer`."""
        following = torch.cat((tokens[1:], tokens[:1]))
        place = torch.arange(tokens.shape[0])
        states = []
        for layer in layers:
            wrong = (place * 37 % 100) / 100 >= self._shares[layer]
            told = (next_of(following) + wrong) % VOCAB
            states.append(torch.nn.functional.one_hot(told, WIDTH).float())
        return torch.nn.functional.one_hot(tokens, WIDTH).float(), torch.cat(states, dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """As in `Transformer`."""
        said = next_of(hidden.argmax(dim=-1))
        return torch.nn.functional.one_hot(said, VOCAB).float()


def reading(layers: tuple[int, ...]) -> Eagle3Drafter:
    """A head that drafts what its first state holds, whatever the tokens are."""
    head = Eagle3Head(
        Eagle3Config(
            decoder=replace(TellingTarget.config, num_layers=1),
            draft_vocab_size=VOCAB,
            target_hidden_size=WIDTH,
            feature_layers=layers,
            norm_before_residual=False,
        )
    ).requires_grad_(False)
    head.fc.weight.zero_()
    head.fc.weight[:, :WIDTH] = torch.eye(WIDTH)
    head.midlayer.self_attn.o_proj.weight.zero_()
    head.midlayer.mlp.down_proj.weight.zero_()
    head.lm_head.weight.copy_(torch.eye(VOCAB, WIDTH))
    cache = KvCache.allocate(head.config.decoder, 1, 256, torch.float32, CPU)
    return Eagle3Drafter(
        "head", head, torch.ones(VOCAB, WIDTH), cache, backend="torch", num_weight_bytes=0
    )


def told(layers: tuple[int, ...], shares: dict[int, float], default: float = 0.1) -> Calibration:
    """The calibration of such a head."""
    engine = SimpleNamespace(target=TellingTarget(shares, default), cache=None)
    return calibrate(reading(layers), engine, TEXTS)  # type: ignore[arg-type]


@pytest.mark.parametrize("off_by", [-1, 1])
def test_the_right_neighbour_is_named(off_by: int) -> None:
    """The state with the answers is layer 3; a head whose ids are off by one is told all of them.

    70 against 10 right in 100 at 995 positions: over twenty standard errors.
    """
    configured = (3 + off_by, 5 + off_by, 6 + off_by)

    found = told(configured, {3: 0.7})

    assert found.layers == configured
    assert found.num_positions == NUM_POSITIONS
    assert found.agreement[-off_by] == pytest.approx(0.7, abs=0.01)
    assert found.agreement[0] == pytest.approx(0.1, abs=0.01)
    assert found.better_layers == (3, 5, 6)


def test_right_ids_are_left_alone() -> None:
    """The neighbours agree less; the head is better than chance."""
    found = told((3, 5, 6), {3: 0.7})

    assert found.agreement.keys() == {-1, 0, 1}
    assert found.agreement[0] == pytest.approx(0.7, abs=0.01)
    assert found.better_layers is None
    assert not found.is_chance


def test_positions_where_both_agree_tell_nothing() -> None:
    """Ten drafts of 995 that only the neighbour gets right, and none the other way, are enough."""
    found = told((3, 5, 6), {3: 0.5, 4: 0.51})

    assert found.differing[1] == pytest.approx(10 / 995)
    assert found.better_layers == (4, 6, 7)


@pytest.mark.parametrize(
    ("layers", "shifts"),
    [((0, 3, 5), {0, 1}), ((2, 4, 7), {-1, 0}), ((0, 4, 7), {0}), ((1, 4, 6), {-1, 0, 1})],
)
def test_only_layers_that_exist_are_tried(layers: tuple[int, ...], shifts: set[int]) -> None:
    """Below the first and beyond the last layer there is no neighbour."""
    assert told(layers, {}).agreement.keys() == shifts


def test_a_head_that_reads_elsewhere_is_chance() -> None:
    """What it drafts is right as seldom as one and the same token would be, or less."""
    found = told((3, 5, 6), {}, default=0.08)

    assert found.is_chance
    # Uniform prompts make the target say every token alike often.
    assert found.chance == pytest.approx(1 / VOCAB, abs=0.03)


# ---------------------------------------------------------------- the decisions


def calibration(
    own: float,
    *,
    chance: float = 0.1,
    n: int = 1000,
    differing: float | None = None,
    **others: float,
) -> Calibration:
    """Counts as given; `below` and `above` are the neighbours, by default as if independent."""
    named = {-1: others.get("below"), 0: own, 1: others.get("above")}
    agreement = {shift: share for shift, share in named.items() if share is not None}
    apart = 2 * own * (1 - own) if differing is None else differing
    return Calibration(
        layers=(2, 4, 6),
        num_positions=n,
        agreement=agreement,
        differing=dict.fromkeys(agreement, apart),
        chance=chance,
    )


@pytest.mark.parametrize(
    ("found", "better"),
    [
        # 3 sqrt(2 * 0.4 * 0.6 / 1000) = 0.0657
        (calibration(0.4, above=0.466), (3, 5, 7)),
        (calibration(0.4, above=0.465), None),
        (calibration(0.4, below=0.466, above=0.46), (1, 3, 5)),
        (calibration(0.4, below=0.47, above=0.5), (3, 5, 7)),
        (calibration(0.4, below=0.39, above=0.1), None),
        (calibration(0.4, n=10, above=0.6), None),
        (calibration(0.0, above=0.5), (3, 5, 7)),
        (calibration(0.4), None),
        # 3 sqrt(0.1 / 2037) = 0.0210: two heads that mostly agree need less of a difference
        (calibration(0.274, above=0.299, n=2037, differing=0.1), (3, 5, 7)),
        (calibration(0.274, above=0.294, n=2037, differing=0.1), None),
    ],
)
def test_a_neighbour_must_be_better_by_three_errors(
    found: Calibration, better: tuple[int, ...] | None
) -> None:
    """The best of them is named."""
    assert found.better_layers == better


@pytest.mark.parametrize(
    ("found", "is_chance"),
    [
        # 3 sqrt(0.1 * 0.9 / 1000) = 0.0285
        (calibration(0.128, chance=0.1), True),
        (calibration(0.129, chance=0.1), False),
        (calibration(0.05, chance=0.1), True),
        # 3 sqrt(0.1 * 0.9 / 200) = 0.0636
        (calibration(0.163, chance=0.1, n=200), True),
        (calibration(0.164, chance=0.1, n=200), False),
        (calibration(0.1, chance=0.1, n=199), False),
    ],
)
def test_chance_is_left_behind_by_three_errors(found: Calibration, is_chance: bool) -> None:
    """Of drafting always the commonest token; fewer than 200 positions do not condemn a head."""
    assert found.is_chance is is_chance


def test_nothing_to_compare_decides_nothing() -> None:
    """Texts of fewer than three tokens have no draft to look at: no decision, no error."""
    engine = SimpleNamespace(target=TellingTarget({}, 0.1), cache=None)

    found = calibrate(reading((3, 5, 6)), engine, [(1, 2), (3,), ()])  # type: ignore[arg-type]

    assert found.num_positions == 0
    assert found.better_layers is None
    assert not found.is_chance


# ---------------------------------------------------------------- a real target

TARGET = tiny_model(7, head_scale=1.0, layer_scale=0.1)


LAYERS = (0, 1, 2)


@cache
def greedy_answers() -> list[Trajectory]:
    """Greedy answers to prompts of one token, with states."""
    asked = [request((i,), name=str(i), max_tokens=40) for i in range(VOCAB)]
    return record(tiny_engine(TARGET, slots=VOCAB), asked, batch_size=VOCAB, feature_layers=LAYERS)


def texts() -> list[list[int]]:
    """The answers with their prompts, without the last token: nothing is known to follow it."""
    return [
        [*answer.request.prompt_tokens, *answer.output_tokens[:-1]] for answer in greedy_answers()
    ]


def test_agreement_is_first_position_acceptance() -> None:
    """On greedy answers, exactly what replay finds for K = 1."""
    engine = tiny_engine(TARGET, slots=1)
    drafter = eagle3_with(engine, fitted_head(TARGET, LAYERS))

    found = calibrate(drafter, engine, texts())

    rows = profiles(drafter, greedy_answers(), max_drafts=1, max_len=engine.max_len)
    accepted = torch.cat([profile.survival[:, 0] for profile in rows])
    assert found.num_positions == accepted.shape[0] == VOCAB * 39
    # The last output token of an answer may not be drafted any more; its draft is still compared.
    assert found.agreement[0] == pytest.approx(float(accepted.mean()))
    assert 0.3 < found.agreement[0] < 0.95
    assert not found.is_chance


def test_first_drafts_are_the_engines() -> None:
    """After every token of an answer, the first draft of a greedy round."""
    engine = tiny_engine(TARGET, slots=1)
    drafter = eagle3_with(engine, fitted_head(TARGET, LAYERS))
    for trajectory in greedy_answers()[:3]:
        tokens = [*trajectory.request.prompt_tokens, *trajectory.output_tokens]
        states = trajectory.features_of(drafter.feature_layers)

        drafts = drafter.first_drafts(tokens[:-1], states).tolist()

        drafted = drafter.snapshot_of(trajectory)
        for position in range(1, trajectory.num_decoded):
            state = trajectory.resume_at(position)
            drafter.restore(0, state, drafted)
            proposal = drafter.propose([0], [state], [1], None)
            assert proposal.tokens == [[drafts[position - 1]]]


def test_a_head_that_learnt_nothing_is_chance() -> None:
    """Random weights agree with the target no more often than one token would."""
    engine = tiny_engine(TARGET, slots=1)

    found = calibrate(eagle3_with(engine, random_head(TARGET, layers=LAYERS)), engine, texts())

    assert found.is_chance

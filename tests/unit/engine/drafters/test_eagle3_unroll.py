"""The EAGLE-3 head along known text: equal to drafting one token at a time, and trainable."""

from __future__ import annotations

from itertools import pairwise
from math import exp

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.checkpoint.eagle3_config import Eagle3Config
from engine.drafters.eagle3.forced import forced_logits
from engine.drafters.eagle3.head import Eagle3Head
from engine.drafters.eagle3.unroll import unroll
from engine.errors import EngineError
from engine.kernels.rotary import RotaryTables
from engine.profile import profile_steps
from engine.record import Trajectory, record
from tests.support.eagle3_reference import Array, HeadShape, forced_chain
from tests.support.reference import reference_probs
from tests.support.tiny_models import random_prompt, request, tiny_config, tiny_engine, tiny_model

VOCAB = 12
COLUMNS = [1, 2, 5, 6, 7, 9, 11]
NUM_STEPS = 4
MAX_LEN = 64
LAYERS = (0, 1, 3)
SHAPES = {
    "grouped": (2, False, 16),
    "grouped, normed residual": (2, True, 16),
    "one key head": (1, False, 16),
    "a key head each": (4, True, 16),
    "wider target": (2, False, 20),
}
"""Key/value heads, `norm_before_residual`, width of the target."""


def config_of(shape: str = "grouped") -> Eagle3Config:
    """A head of width 16 with 4 heads of 6."""
    num_kv_heads, norm_before_residual, target_hidden_size = SHAPES[shape]
    return Eagle3Config(
        decoder=tiny_config(num_layers=1, num_kv_heads=num_kv_heads),
        draft_vocab_size=len(COLUMNS),
        target_hidden_size=target_hidden_size,
        feature_layers=LAYERS,
        norm_before_residual=norm_before_residual,
    )


def head_of(shape: str = "grouped") -> Eagle3Head:
    """A seeded float64 head, strong enough that the context matters, with a sparse vocabulary."""
    head = Eagle3Head(config_of(shape)).double()
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * noise + (parameter.dim() == 1))
        head.d2t.copy_(torch.tensor(COLUMNS) - torch.arange(len(COLUMNS)))
        head.t2d.copy_(torch.isin(torch.arange(VOCAB), torch.tensor(COLUMNS)))
    return head


def rotary_of(head: Eagle3Head, dtype: torch.dtype = torch.float64) -> RotaryTables:
    """Tables of the head."""
    return RotaryTables.build(head.config.decoder, MAX_LEN, dtype, torch.device("cpu"))


def normal(seed: int, *shape: int) -> Tensor:
    """Seeded float64 numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


EMBEDDING = normal(1, VOCAB, 16)


def text_of(seed: int, length: int, head: Eagle3Head) -> tuple[tuple[int, ...], Tensor]:
    """A text of `length` tokens, and the target's states at all of them but the last."""
    states = normal(seed, length - 1, 3 * head.config.target_hidden_size)
    return random_prompt(seed, length, VOCAB), states


def reference(
    head: Eagle3Head, tokens: tuple[int, ...], features: Tensor, start: int, num_steps: int
) -> tuple[Array, Array]:
    """Outputs and logits of one chain, the slow way."""
    decoder = head.config.decoder
    return forced_chain(
        {name: value.detach().numpy() for name, value in head.state_dict().items()},
        HeadShape(
            num_heads=decoder.num_heads,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            eps=decoder.rms_norm_eps,
            rope_theta=decoder.rope_theta,
            norm_before_residual=head.config.norm_before_residual,
        ),
        EMBEDDING.numpy(),
        features.double().numpy(),
        tokens,
        start,
        num_steps,
    )


def embedded_of(tokens: tuple[int, ...], length: int) -> Tensor:
    """[length, hidden], the token after each position, then what no chain may read."""
    rows = torch.full((length, 16), 1e6, dtype=torch.float64)
    rows[: len(tokens) - 1] = EMBEDDING[list(tokens[1:])]
    return rows


def unrolled(
    head: Eagle3Head, texts: list[tuple[tuple[int, ...], Tensor]], starts: Tensor
) -> list[Tensor]:
    """Every step's [B, S, hidden] of texts padded with large numbers to the longest."""
    longest = max(features.shape[0] for _, features in texts)
    padded = torch.full((len(texts), longest, texts[0][1].shape[1]), -1e5, dtype=torch.float64)
    for row, (_, features) in enumerate(texts):
        padded[row, : features.shape[0]] = features
    embedded = torch.stack([embedded_of(tokens, longest + NUM_STEPS) for tokens, _ in texts])
    return list(unroll(head, embedded, padded, starts, rotary_of(head), NUM_STEPS))


def every_start(length: int, batch: int = 1) -> Tensor:
    """[batch, length]."""
    return torch.arange(length).expand(batch, -1)


# ---------------------------------------------------------------- against the slow way


@pytest.mark.parametrize("shape", SHAPES)
def test_every_start_and_step_equals_drafting_one_by_one(shape: str) -> None:
    """The layer's output, for every chain as far as the text goes."""
    head = head_of(shape)
    tokens, features = text_of(3, 12, head)

    steps = unrolled(head, [(tokens, features)], every_start(11))

    assert [out.shape for out in steps] == [(1, 11, 16)] * NUM_STEPS
    for start in range(11):
        inside = min(NUM_STEPS, 11 - start)
        wanted, logits = reference(head, tokens, features, start, inside)
        found = torch.stack([out[0, start] for out in steps[:inside]])
        torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=0, atol=1e-6)
        torch.testing.assert_close(head.logits(found), torch.from_numpy(logits), rtol=0, atol=1e-6)


def test_the_shapes_differ() -> None:
    """Each setting of the comparison above has an effect of its own on the outputs."""
    tokens, features = text_of(3, 12, head_of())
    plain, normed = (
        reference(head_of(shape), tokens, features, 8, 3)[0]
        for shape in ("grouped", "grouped, normed residual")
    )
    other = (*tokens[:4], (tokens[4] + 1) % VOCAB, *tokens[5:])
    with_other = reference(head_of(), other, features, 8, 3)[0]

    assert np.abs(plain - normed).max(axis=1).min() > 1e-2
    assert np.abs(plain - with_other).max(axis=1).min() > 1e-2
    for one, next_one in pairwise(plain):
        assert np.abs(one - next_one).max() > 1e-2


@pytest.mark.parametrize("shape", ["grouped", "wider target"])
def test_a_padded_batch_equals_its_rows(shape: str) -> None:
    """Rows of two lengths, with large numbers in the padding, and chains of their own."""
    head = head_of(shape)
    texts = [text_of(4, 12, head), text_of(5, 8, head)]
    starts = torch.tensor([[10, 2, 7], [0, 6, 3]])

    steps = unrolled(head, texts, starts)

    for row, (tokens, features) in enumerate(texts):
        for column, start in enumerate(starts[row].tolist()):
            inside = min(NUM_STEPS, len(tokens) - 1 - start)
            wanted, _ = reference(head, tokens, features, start, inside)
            found = torch.stack([out[row, column] for out in steps[:inside]])
            torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=0, atol=1e-6)


def test_states_after_the_start_do_not_matter() -> None:
    """A chain reads the target up to its start only, whether padding or text comes after."""
    head = head_of()
    tokens, features = text_of(6, 12, head)
    changed = features.clone()
    changed[6:] = 1e4

    steps = unrolled(head, [(tokens, features)], every_start(6))
    again = unrolled(head, [(tokens, changed)], every_start(6))

    for one, other in zip(steps, again, strict=True):
        assert torch.equal(one, other)


def test_chains_do_not_see_each_other() -> None:
    """A start alone gives what it gives among all."""
    head = head_of()
    text = text_of(7, 12, head)
    together = unrolled(head, [text], every_start(11))

    alone = unrolled(head, [text], torch.tensor([[5]]))

    for one, all_of_them in zip(alone, together, strict=True):
        torch.testing.assert_close(one[0, 0], all_of_them[0, 5], rtol=0, atol=1e-9)


def test_float32_agrees() -> None:
    """The type that training uses, to its precision."""
    head = head_of()
    tokens, features = text_of(8, 12, head)
    wanted = unrolled(head, [(tokens, features)], torch.tensor([[2, 7]]))
    rotary = rotary_of(head, torch.float32)

    steps = list(
        unroll(
            head.float(),
            embedded_of(tokens, 11 + NUM_STEPS).float().unsqueeze(0),
            features.float().unsqueeze(0),
            torch.tensor([[2, 7]]),
            rotary,
            NUM_STEPS,
        )
    )

    for one, other in zip(steps, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- along recorded answers


def recorded(
    max_tokens: int = 10, temperature: float = 0.0, layers: tuple[int, ...] = LAYERS
) -> Trajectory:
    """An answer of a target of three layers."""
    target = tiny_model(7, max_len=MAX_LEN)
    asked = request(random_prompt(9, 6), temperature=temperature, max_tokens=max_tokens, seed=4)
    (trajectory,) = record(
        tiny_engine(target, slots=1), [asked], batch_size=1, feature_layers=layers
    )
    return trajectory


@pytest.mark.parametrize("shape", ["grouped", "grouped, normed residual"])
def test_forced_logits_are_those_of_every_round(shape: str) -> None:
    """Row i of step j: the draft of output token i + j + 1 after i + 1 of them."""
    head, trajectory = head_of(shape), recorded()
    prompt = trajectory.request.prompt_tokens
    text = (*prompt, *trajectory.output_tokens)

    steps = list(forced_logits(head, EMBEDDING, rotary_of(head), trajectory, NUM_STEPS))

    assert [logits.shape for logits in steps] == [(9 - j, 7) for j in range(NUM_STEPS)]
    features = trajectory.features_of(LAYERS)
    for i in range(9):
        inside = min(NUM_STEPS, 9 - i)
        _, wanted = reference(head, text, features, len(prompt) - 1 + i, inside)
        found = torch.stack([logits[i] for logits in steps[:inside]])
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), torch.from_numpy(wanted), rtol=0, atol=5e-5)


@pytest.mark.parametrize("num_tokens", [2, 3])
def test_a_short_answer_has_as_many_steps_as_tokens(num_tokens: int) -> None:
    """Down to one draft from one start."""
    head, trajectory = head_of(), recorded(max_tokens=num_tokens)
    text = (*trajectory.request.prompt_tokens, *trajectory.output_tokens)

    steps = list(forced_logits(head, EMBEDDING, rotary_of(head), trajectory, num_tokens - 1))

    _, wanted = reference(head, text, trajectory.features_of(LAYERS), 5, num_tokens - 1)
    assert [logits.shape[0] for logits in steps] == list(range(num_tokens - 1, 0, -1))
    for logits, row in zip(steps, wanted, strict=True):
        torch.testing.assert_close(logits[0].double(), torch.from_numpy(row), rtol=0, atol=5e-5)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5])
def test_answers_shorter_than_the_longest_draft(num_tokens: int) -> None:
    """More steps than the answer has tokens: those inside come as ever, and none beyond."""
    head, trajectory = head_of(), recorded(max_tokens=num_tokens)

    steps = list(forced_logits(head, EMBEDDING, rotary_of(head), trajectory, 8))
    (profile,) = profile_steps(
        iter(steps), head.target_ids, trajectory, [None], max_drafts=8, max_len=MAX_LEN
    )

    count = num_tokens - 1
    fewer = list(forced_logits(head, EMBEDDING, rotary_of(head), trajectory, count))
    assert [step.shape[0] for step in steps] == list(range(count, 0, -1))
    assert all(torch.equal(one, other) for one, other in zip(steps, fewer, strict=True))
    assert profile.survival.shape == (count, 8)


def test_a_text_as_long_as_the_tables() -> None:
    """The last chains end with the text, so positions beyond it need no entries."""
    head, trajectory = head_of(), recorded()
    length = len(trajectory.request.prompt_tokens) + len(trajectory.output_tokens)
    tables = rotary_of(head)
    short = RotaryTables(tables.cos[:length], tables.sin[:length])

    steps = list(forced_logits(head, EMBEDDING, short, trajectory, NUM_STEPS))

    wanted = forced_logits(head, EMBEDDING, tables, trajectory, NUM_STEPS)
    assert all(torch.equal(one, other) for one, other in zip(steps, wanted, strict=True))


def test_the_states_must_have_been_recorded() -> None:
    """An answer recorded for another head is refused, with the layer."""
    head, trajectory = head_of(), recorded(layers=(0, 2, 3))

    with pytest.raises(EngineError, match="layer 1 were not recorded"):
        list(forced_logits(head, EMBEDDING, rotary_of(head), trajectory, 1))


def test_states_are_found_among_others() -> None:
    """An answer recorded for several heads serves each of them."""
    head = head_of()

    many = list(forced_logits(head, EMBEDDING, rotary_of(head), recorded(layers=(0, 1, 2, 3)), 2))

    own = list(forced_logits(head, EMBEDDING, rotary_of(head), recorded(), 2))
    assert all(torch.equal(one, other) for one, other in zip(many, own, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_profile_maps_the_draft_vocabulary(temperature: float) -> None:
    """Survival from the head's ids equals that of q spread over the whole vocabulary."""
    head, trajectory = head_of(), recorded(temperature=temperature)
    prompt, output = trajectory.request.prompt_tokens, trajectory.output_tokens

    (profile,) = profile_steps(
        forced_logits(head, EMBEDDING, rotary_of(head), trajectory, 3),
        head.target_ids,
        trajectory,
        [None],
        max_drafts=3,
        max_len=MAX_LEN,
    )

    d2t = head.state_dict()["d2t"].tolist()
    accepted = []
    for i in range(len(output) - 1):
        inside = min(3, len(output) - 1 - i)
        start = len(prompt) - 1 + i
        features = trajectory.features_of(LAYERS)
        _, logits = reference(head, (*prompt, *output), features, start, inside)
        chance, row = 1.0, [0.0] * 3
        for j, scores in enumerate(logits):
            q = dict.fromkeys(range(VOCAB), 0.0)
            for draft_id, mass in enumerate(reference_probs(scores.tolist(), temperature)):
                q[draft_id + d2t[draft_id]] = mass
            wanted = output[i + 1 + j]
            chance *= min(1.0, q[wanted] / exp(trajectory.log_probs[i + j]))
            row[j] = chance
        assert profile.survival[i].tolist() == pytest.approx(row, rel=1e-3, abs=1e-7)
        accepted.append(row[0])
    if temperature:
        assert 0 < sum(accepted) < len(accepted)
        assert 0.0 in accepted  # a token that the head cannot draft


def test_target_ids_undo_the_offsets() -> None:
    """d2t holds target id minus draft id; a new head starts with the first ids."""
    assert head_of().target_ids.tolist() == COLUMNS
    fresh = Eagle3Head(config_of())
    assert fresh.target_ids.tolist() == list(range(len(COLUMNS)))
    assert fresh.t2d.nonzero().flatten().tolist() == list(range(len(COLUMNS)))


# ---------------------------------------------------------------- weights and gradients


def test_the_state_is_the_checkpoint() -> None:
    """Names and shapes of the public layout, the embedding left to the target."""
    shapes = {name: tuple(value.shape) for name, value in head_of().state_dict().items()}

    assert shapes == {
        "d2t": (7,),
        "t2d": (12,),
        "fc.weight": (16, 48),
        "midlayer.input_layernorm.weight": (16,),
        "midlayer.hidden_norm.weight": (16,),
        "midlayer.self_attn.q_proj.weight": (24, 32),
        "midlayer.self_attn.k_proj.weight": (12, 32),
        "midlayer.self_attn.v_proj.weight": (12, 32),
        "midlayer.self_attn.o_proj.weight": (16, 24),
        "midlayer.post_attention_layernorm.weight": (16,),
        "midlayer.mlp.gate_proj.weight": (24, 16),
        "midlayer.mlp.up_proj.weight": (24, 16),
        "midlayer.mlp.down_proj.weight": (16, 24),
        "norm.weight": (16,),
        "lm_head.weight": (7, 16),
    }


@pytest.mark.parametrize("step", range(NUM_STEPS))
def test_every_parameter_gets_a_gradient(step: int) -> None:
    """From the logits of each step by itself."""
    head = head_of()
    steps = unrolled(head, [text_of(10, 12, head)], torch.tensor([[2, 6]]))

    head.logits(steps[step]).square().sum().backward()  # type: ignore[no-untyped-call]

    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name


@pytest.mark.parametrize("shape", ["grouped", "grouped, normed residual"])
@pytest.mark.parametrize("part", ["fc", "midlayer.self_attn.k_proj", "midlayer.mlp.down_proj"])
def test_gradients_go_through_all_steps(shape: str, part: str) -> None:
    """The last step's slope along a direction is that of the slow way: nothing is cut off."""
    head = head_of(shape)
    tokens, features = text_of(11, 12, head)
    weight = head.get_parameter(f"{part}.weight")
    direction = normal(12, *weight.shape)
    steps = unrolled(head, [(tokens, features)], torch.tensor([[6]]))
    steps[-1].sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    slope = float((weight.grad * direction).sum())

    ends = []
    for epsilon in (1e-5, -1e-5):
        moved = head_of(shape)
        with torch.no_grad():
            moved.get_parameter(f"{part}.weight").add_(epsilon * direction)
        ends.append(float(reference(moved, tokens, features, 6, NUM_STEPS)[0][-1].sum()))

    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-4)

"""From logits to a distribution to a token: against references, and at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import NumericError, RequestError
from engine.kernels.native.bindings import Library
from engine.kernels.sampling import best_tokens, processed_probs, sample_from, sample_residual
from engine.sampling import SamplingParams
from tests.support.laws import dist, midpoints
from tests.support.reference import reference_probs

SETTINGS = [
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.3, 0, 0.8),
    (1.0, 3, 1.0),
    (0.7, 5, 0.9),
    (1.0, 1, 0.5),
    (0.3, 40, 0.05),
    (2.0, 1000, 0.999),
    (1e-6, 0, 0.9),
]
ALMOST_ONE = math.nextafter(1.0, 0.0)


@pytest.fixture(autouse=True, scope="module", params=["torch", "own", "4", "16"])
def _path(request: pytest.FixtureRequest, libraries: Callable[[str], Library]) -> Iterator[None]:
    """The reference, and the native functions at every vector width."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = "not wanted" if request.param == "torch" else libraries(request.param)
        patch.setattr("engine.kernels.sampling.load", lambda: chosen)
        yield


def random_logits(rows: int, vocab: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    """Seeded normal logits; no two of a row are equal."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, vocab, generator=generator)


def processed(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """All rows with one setting."""
    rows = logits.shape[0]
    return processed_probs(logits, [temperature] * rows, [top_k] * rows, [top_p] * rows)


@pytest.mark.parametrize("vocab", [7, 300, 3000])
@pytest.mark.parametrize("setting", SETTINGS)
def test_distributions_equal_the_float64_reference(
    setting: tuple[float, int, float], vocab: int
) -> None:
    """Same tokens kept, probabilities to 1e-5, rows that sum to 1; flat and peaked rows."""
    logits = torch.cat([random_logits(3, vocab, scale=scale) for scale in (0.2, 3.0)])

    probs = processed(logits, *setting)

    expected = torch.tensor(
        [reference_probs(row, *setting) for row in logits.double().tolist()], dtype=torch.float64
    )
    assert torch.equal(probs > 0, expected.float() > 0)
    torch.testing.assert_close(probs.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(logits)))


@pytest.mark.parametrize("setting", SETTINGS[:-1])
def test_distributions_equal_those_of_transformers(setting: tuple[float, int, float]) -> None:
    """Temperature, top-k, top-p in that order, as its logits processors apply them."""
    logits = random_logits(20, 400, seed=1)
    temperature, top_k, top_p = setting
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    warped = warpers(torch.LongTensor([[0]] * 20), torch.FloatTensor(logits.clone()))

    torch.testing.assert_close(
        processed(logits, *setting), torch.softmax(warped, -1), rtol=0, atol=1e-6
    )


def test_each_row_has_its_own_setting() -> None:
    """A mixed batch gives every row what it gets alone, greedy rows included."""
    logits = random_logits(len(SETTINGS) + 1, 50, seed=2)
    rows = [*SETTINGS, (0.0, 2, 0.5)]

    mixed = processed_probs(
        logits, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    )

    for index, setting in enumerate(rows):
        alone = processed(logits[index : index + 1], *setting)
        torch.testing.assert_close(mixed[index], alone[0], rtol=1e-6, atol=1e-8)


def test_temperature_zero_takes_the_first_largest() -> None:
    """Exact argmax: one-hot, the first of ties, no division."""
    logits = torch.tensor([[1.0, 5.0, 5.0], [3.0, -math.inf, 2.0]])

    assert processed(logits, 0.0, 0, 1.0).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-50, 5e-324])
def test_a_tiny_temperature_is_sampled_and_finite(temperature: float) -> None:
    """Any positive temperature samples: down to the smallest, ties share and the rest is 0."""
    logits = torch.tensor([[1.0, 5.0, 5.0], [300.0, -300.0, 299.0], [3.0, -math.inf, 2.0]])

    probs = processed(logits, temperature, 0, 1.0)

    assert probs.tolist() == [[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_a_huge_temperature_is_uniform_over_what_is_possible(temperature: float) -> None:
    """Large temperatures flatten; impossible tokens stay impossible."""
    probs = processed(torch.tensor([[1.0, -5.0, -math.inf, 9.0]]), temperature, 0, 1.0)

    torch.testing.assert_close(probs, torch.tensor([[1 / 3, 1 / 3, 0, 1 / 3]]))


def test_ties_with_the_last_kept_token_are_kept() -> None:
    """What is kept does not depend on how a sort breaks ties, for top-k and top-p."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])

    assert (processed(logits, 1.0, 2, 1.0) > 0).tolist() == [[True, True, True, True, False]]
    assert (processed(logits, 1.0, 0, 0.6) > 0).tolist() == [[True, True, True, True, False]]


@pytest.mark.parametrize(("top_p", "kept"), [(0.49, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3)])
def test_the_nucleus_is_the_smallest_prefix_that_reaches_its_mass(top_p: float, kept: int) -> None:
    """A prefix of exactly the wanted mass is enough."""
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log()

    probs = processed(logits, 1.0, 0, top_p)

    # The two smallest are a tie: the third token brings the fourth with it.
    assert int((probs > 0).sum()) == {1: 1, 2: 2, 3: 4}[kept]


def test_top_p_counts_the_mass_after_top_k() -> None:
    """The nucleus is taken of the renormalised top-k, not of the whole vocabulary."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()

    # 0.4 is 57 % of the top two, but 40 % of all.
    assert (processed(logits, 1.0, 2, 0.5) > 0).tolist() == [[True, False, False, False]]
    assert (processed(logits, 1.0, 0, 0.5) > 0).tolist() == [[True, True, False, False]]


def test_a_nucleus_larger_than_the_first_guess_is_found() -> None:
    """A flat distribution over thousands of tokens keeps all that its mass needs."""
    logits = random_logits(2, 9000, seed=3, scale=0.01)

    kept = (processed(logits, 1.0, 0, 0.9) > 0).sum(-1).tolist()

    expected = [
        sum(p > 0 for p in reference_probs(row, 1.0, 0, 0.9)) for row in logits.double().tolist()
    ]
    assert kept == pytest.approx(expected, abs=2)


def test_logits_are_left_alone() -> None:
    """Processing works on a copy, whatever the setting."""
    logits = random_logits(6, 30)
    before = logits.clone()

    processed_probs(
        logits, [0.0, 1.0, 0.7, 1.0, 1.0, 0.0], [0, 3, 0, 2, 0, 1], [1, 1, 0.5, 0.9, 1, 1]
    )

    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_refused(bad: float) -> None:
    """NaN or +inf anywhere in a row is an error, not a token."""
    logits = random_logits(3, 8)
    logits[1, 5] = bad

    with pytest.raises(NumericError, match="NaN"):
        processed(logits, 1.0, 0, 1.0)
    with pytest.raises(NumericError, match="NaN"):
        processed(logits, 0.0, 0, 1.0)


def test_a_row_without_any_possible_token_is_refused() -> None:
    """Only -inf is an error; some -inf is a mask."""
    assert best_tokens(torch.tensor([[-math.inf, 0.0]])).tolist() == [1]
    assert processed(torch.tensor([[-math.inf, 0.0]]), 1.0, 0, 0.9).tolist() == [[0.0, 1.0]]
    for refused in ([-math.inf, -math.inf], [math.inf, 0.0], [0.0, math.nan]):
        with pytest.raises(NumericError, match="no finite value"):
            best_tokens(torch.tensor([[0.0, 0.0], refused]))
        with pytest.raises(NumericError, match="no finite value"):
            processed(torch.tensor([[0.0, 0.0], refused]), 1.0, 0, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_impossible_tokens_are_never_returned(seed: int) -> None:
    """Zero-probability tokens, at either end of the row too, for no uniform."""
    logits = random_logits(300, 40, seed=seed, scale=8.0)
    logits[:, 0] = logits[::2, -1] = -math.inf
    probs = processed(logits, 1.0, 5, 0.9)
    for u in (0.0, 1e-300, 0.3, 0.999999, ALMOST_ONE):
        tokens = sample_from(probs, [u] * 300)
        assert bool((probs.gather(1, tokens.unsqueeze(1)) > 0).all())


def test_one_possible_token_is_always_returned() -> None:
    """A certain row has one answer, whatever the total is."""
    probs = torch.zeros(5, 5)
    probs[range(5), range(5)] = torch.tensor([1.0, 1e-30, 1e-45, 3.0, 0.9999999])

    for u in (0.0, 0.5, ALMOST_ONE):
        assert sample_from(probs, [u] * 5).tolist() == [0, 1, 2, 3, 4]


def test_a_point_that_rounding_lifts_to_the_end_stays_inside() -> None:
    """With the smallest total there is, the largest uniform still returns a possible token."""
    probs = torch.tensor([[0.0, 5e-324, 0.0]], dtype=torch.float64)

    assert sample_from(probs, [ALMOST_ONE]).tolist() == [1]


weights = st.lists(st.integers(0, 6), min_size=2, max_size=6).filter(any)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(weights=weights)
def test_sampling_has_exactly_the_given_law(weights: list[int]) -> None:
    """The widths of the uniforms that give a token sum to its probability."""
    law = dist(*weights)
    steps = midpoints(accumulate(law))
    rows = torch.tensor([[float(p) for p in law]]).expand(len(steps), -1)

    tokens = sample_from(rows, [float(middle) for _, middle in steps]).tolist()

    found = [Fraction(0)] * len(law)
    for (width, _), token in zip(steps, tokens, strict=True):
        found[token] += width
    assert tuple(found) == law


def test_unnormalised_rows_sample_alike() -> None:
    """Only the proportions count."""
    probs = processed(random_logits(50, 9), 1.0, 0, 1.0)
    uniforms = [i / 50 for i in range(50)]

    assert torch.equal(sample_from(probs, uniforms), sample_from(probs * 3.5, uniforms))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("max_tokens", 0),
    ],
)
def test_senseless_parameters_are_refused_by_name(field: str, value: float) -> None:
    """The message names the field and its value."""
    with pytest.raises(RequestError, match=rf"{field} = {value}"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_only_temperature_zero_is_greedy() -> None:
    """A tiny temperature samples, as documented."""
    assert SamplingParams(temperature=0.0).is_greedy
    assert not SamplingParams(temperature=1e-6).is_greedy


# ---------------------------------------------------------------- best tokens and residuals


@pytest.mark.parametrize("vocab", [1, 5, 64, 129, 3000])
def test_the_best_token_is_the_first_of_the_largest(vocab: int) -> None:
    """Ties go to the smallest id, wherever they stand."""
    logits = random_logits(40, vocab)
    for row in range(40):
        logits[row, [row % vocab, (7 * row) % vocab]] = 100.0

    expected = [min(row % vocab, (7 * row) % vocab) for row in range(40)]
    assert best_tokens(logits).tolist() == expected


def test_chosen_rows_are_processed_as_if_alone() -> None:
    """Rows may be left out, repeated and reordered; each has its own settings, to the bit."""
    logits = random_logits(6, 700)
    rows, temperatures, ks = [4, 0, 4, 5], [0.7, 0.0, 1.1, 2.0], [0, 0, 9, 0]
    ps = [0.9, 1.0, 1.0, 0.5]

    together = processed_probs(logits, temperatures, ks, ps, rows)

    for i, row in enumerate(rows):
        alone = processed_probs(logits[[row]], [temperatures[i]], [ks[i]], [ps[i]])
        assert torch.equal(together[i], alone[0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(p=weights, q=weights, certain=st.booleans())
def test_the_residual_has_exactly_its_law(p: list[int], q: list[int], certain: bool) -> None:
    """norm(max(p - q, 0)) in exact arithmetic, with q certain of the draft as well."""
    size = min(len(p), len(q))
    weighed = [sum(p[:size]), sum(q[:size])]
    if 0 in weighed:
        return
    target = [Fraction(x, weighed[0]) for x in p[:size]]
    draft = max(range(size), key=lambda i: q[i])
    drawn = [Fraction(x, weighed[1]) for x in q[:size]]
    if certain:
        drawn = [Fraction(int(i == draft)) for i in range(size)]
    left = [max(a - b, Fraction(0)) for a, b in zip(target, drawn, strict=True)]
    as_rows = [torch.tensor([float(x) for x in row]) for row in (target, drawn)]
    if sum(left) < Fraction(1, 1000):
        return  # what rounding to float32 leaves is another law
    law = [x / sum(left) for x in left]

    edges = [float(edge) for edge in accumulate(law)]
    for i, (low, high) in enumerate(zip([0.0, *edges], edges, strict=False)):
        if high - low < 1e-3:
            continue
        for u in (low + 1e-4 * (high - low), (low + high) / 2, high - 1e-4 * (high - low)):
            token = sample_residual(as_rows[0], None if certain else as_rows[1], draft, u)
            assert token == i


@pytest.mark.parametrize("vocab", [511, 512, 513, 5000])
@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
def test_every_token_of_a_large_vocabulary_has_its_share(share: float, vocab: int) -> None:
    """Whole weights, so that cumulative sums are exact: any uniform has one right answer."""
    generator = torch.Generator().manual_seed(vocab)
    weights_of = torch.randint(1, 9, (vocab,), generator=generator).double()
    weights_of *= torch.rand(vocab, generator=generator) < share
    weights_of[[vocab // 3, vocab - 2]] += 4.0  # more than can be taken
    taken = torch.randint(0, 4, (vocab,), generator=generator).double()
    uniforms = [0.0, ALMOST_ONE, *torch.rand(200, generator=generator).double().tolist()]

    drawn = sample_from(weights_of.float().expand(len(uniforms), -1), uniforms).tolist()
    left = (weights_of - taken).clamp(min=0)
    residual = [sample_residual(weights_of.float(), taken.float(), 0, u) for u in uniforms]

    for law, tokens in ((weights_of, drawn), (left, residual)):
        edges = law.cumsum(0)
        assert tokens == [int((edges <= u * edges[-1]).sum()) for u in uniforms]


@pytest.mark.parametrize("row", [[0.0, 0.0], [0.5, math.nan]])
def test_no_token_is_drawn_from_nothing(row: list[float]) -> None:
    """A row without mass, or with NaN, is an error and never a token."""
    with pytest.raises(NumericError, match="no mass"):
        sample_from(torch.tensor([[0.5, 0.5], row]), [0.3, 0.3])


def test_distributions_of_two_types_are_compared_as_they_are() -> None:
    """Float64 drafts against a float32 target take the reference's way."""
    p, q = torch.tensor([0.2, 0.8]), torch.tensor([0.9, 0.1], dtype=torch.float64)

    assert sample_residual(p, q, 0, 0.5) == 1


def test_nothing_left_is_told() -> None:
    """P == q and a draft that has all of p leave no residual."""
    p = torch.tensor([0.25, 0.75, 0.0])

    assert sample_residual(p, p.clone(), 0, 0.5) is None
    assert sample_residual(torch.tensor([0.0, 1.0, 0.0]), None, 1, 0.5) is None


def test_a_residual_of_rounding_size_is_still_drawn_from() -> None:
    """Masses down to the smallest subnormal."""
    p = torch.tensor([1e-45, 1.0])

    assert sample_residual(p, torch.tensor([0.0, 1.0]), 1, 0.999) == 0


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 10.0])
def test_large_nuclei_are_those_of_a_full_sort(scale: float, top_p: float) -> None:
    """A vocabulary as large as real ones, flat to peaked, ties included at scale 0."""
    logits = random_logits(2, 49_157, scale=scale)

    probs = processed(logits, 1.0, 0, top_p)

    for row, found in zip(logits.double(), probs, strict=True):
        weights_of = torch.softmax(row, 0)
        values, order = weights_of.sort(descending=True)
        count = int((values.cumsum(0) < top_p).sum()) + 1
        kept = int((found > 0).sum())
        # float32 weights may move the edge by as much as their sum's rounding holds.
        slack = 0 if scale else 49_157
        assert abs(kept - count) <= max(slack, 2 + count // 1000)
        agreed = min(kept, count) - 2 - count // 1000
        assert bool((found[order[: max(agreed, 0)]] > 0).all())
        assert float(found.double().sum()) == pytest.approx(1.0, abs=1e-6)

"""A mixed batch: every row by its own rule, from its own rows of the logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.drafters.base import Proposal
from engine.errors import NumericError
from engine.kernels.sampling import processed_probs
from engine.request import Sequence
from engine.verify import Verdict
from engine.verify_batch import verify_batch
from policies.types import VerificationRule
from tests.support.reference import reference_probs
from tests.support.references import use_references
from tests.support.tiny_models import request

VOCAB = 6


def batch(
    *, deterministic: bool, seed: int = 5
) -> tuple[Tensor, list[int], list[Sequence], Proposal]:
    """Twelve rows, greedy and sampled mixed, with 0 to 2 drafts each."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 3, 1.0), (1.0, 0, 0.8)]
    sequences, tokens, first_rows, total = [], [], [], 0
    for row in range(12):
        temperature, top_k, top_p = kinds[row % 4]
        asked = request((1, 2), temperature=temperature, top_k=top_k, top_p=top_p, seed=row)
        sequences.append(Sequence(asked, [1, 2, *range(row % 5)], round_index=row))
        tokens.append(torch.randint(VOCAB, (row % 3,), generator=generator).tolist())
        first_rows.append(total)
        total += row % 3 + 1
    logits = torch.randn(total, VOCAB, generator=generator)
    probs = torch.softmax(torch.randn(12, 2, VOCAB, generator=generator), -1)
    return logits, first_rows, sequences, Proposal(tokens, None if deterministic else probs)


@pytest.mark.parametrize("rule", VerificationRule)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_equals_its_rows(deterministic: bool, rule: VerificationRule) -> None:
    """Verdicts and distributions do not depend on batch mates."""
    logits, first_rows, sequences, proposal = batch(deterministic=deterministic)

    verdict, probs = verify_batch(logits, first_rows, sequences, proposal, rule)

    for row, sequence in enumerate(sequences):
        count = len(proposal.tokens[row]) + 1
        own = logits[first_rows[row] : first_rows[row] + count]
        q = None if proposal.probs is None else proposal.probs[row : row + 1]
        alone, own_probs = verify_batch(
            own, [0], [sequence], Proposal([proposal.tokens[row]], q), rule
        )
        assert alone.num_accepted == [verdict.num_accepted[row]]
        assert alone.next_tokens == [verdict.next_tokens[row]]
        assert own_probs == [probs[row]]


def test_the_rule_decides_about_drawn_drafts_only() -> None:
    """Two rules differ on the same batch; greedy rows and deterministic drafts know one."""
    differing: set[int] = set()
    for seed in range(40):
        for deterministic in (True, False):
            asked = batch(deterministic=deterministic, seed=seed)
            ratio, block = (verify_batch(*asked, rule)[0] for rule in VerificationRule)
            different = {row for row in range(12) if _outcome(ratio, row) != _outcome(block, row)}
            assert not (deterministic and different)
            differing |= different
    # Rows 0, 4 and 8 are greedy, and one draft or none leaves no choice.
    assert differing == {2, 5, 11}


def _outcome(verdict: Verdict, row: int) -> tuple[int, int]:
    return verdict.num_accepted[row], verdict.next_tokens[row]


def test_greedy_rows_ignore_what_the_draft_was_drawn_from() -> None:
    """A greedy row accepts by argmax alone, whatever q says."""
    logits, first_rows, sequences, proposal = batch(deterministic=False)
    flat = Proposal(proposal.tokens, torch.full((12, 2, VOCAB), 1 / VOCAB))

    verdict, _ = verify_batch(logits, first_rows, sequences, flat)

    for row in range(0, 12, 4):
        best = logits[first_rows[row] :].argmax(-1).tolist()
        draft = proposal.tokens[row]
        agreed = 0
        while agreed < len(draft) and draft[agreed] == best[agreed]:
            agreed += 1
        assert verdict.num_accepted[row] == agreed
        assert verdict.next_tokens[row] == best[agreed]


def test_nothing_is_modified() -> None:
    """Logits and the proposal are left as they are."""
    logits, first_rows, sequences, proposal = batch(deterministic=False)
    assert proposal.probs is not None
    logits_before, q_before = logits.clone(), proposal.probs.clone()

    verify_batch(logits, first_rows, sequences, proposal)

    assert torch.equal(logits, logits_before)
    assert torch.equal(proposal.probs, q_before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nan_of_the_target_is_an_error(temperature: float) -> None:
    """A broken target never turns into tokens, greedy or sampled."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = math.nan
    sequence = Sequence(request((1,), temperature=temperature), [1])

    with pytest.raises(NumericError):
        verify_batch(logits, [0], [sequence], Proposal([[]], None))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_probs_are_those_of_the_processed_distribution(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool, native: bool
) -> None:
    """Of each emitted token under its own row, after temperature, top-k and top-p."""
    if not native:
        use_references(monkeypatch)
    logits, first_rows, sequences, proposal = batch(deterministic=deterministic)

    verdict, found = verify_batch(logits, first_rows, sequences, proposal)

    for row, sequence in enumerate(sequences):
        params = sequence.request.params
        count = verdict.num_accepted[row]
        tokens = [*proposal.tokens[row][:count], verdict.next_tokens[row]]
        expected = [1.0] * len(tokens)
        if not params.is_greedy:
            rows = logits[first_rows[row] : first_rows[row] + len(tokens)].double().tolist()
            expected = [
                reference_probs(x, params.temperature, params.top_k, params.top_p)[token]
                for x, token in zip(rows, tokens, strict=True)
            ]
        assert found[row] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("vocab", [6, 1000, 5000])
def test_native_verification_is_the_reference_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, vocab: int, deterministic: bool
) -> None:
    """The rules of `engine.verify` over the same distributions and the same draws from them.

    Drafts, their distributions and the target agree to all degrees, with -inf among the logits.
    """
    generator = torch.Generator().manual_seed(vocab)
    kinds = [(1.0, 0, 1.0), (0.7, 3, 1.0), (1.0, 0, 0.8), (1.5, 50, 0.95), (1e-3, 0, 1.0)]
    sequences, tokens, first_rows, total = [], [], [], 0
    for row in range(200):
        temperature, top_k, top_p = kinds[row % len(kinds)]
        asked = request((1,), temperature=temperature, top_k=top_k, top_p=top_p, seed=row - 100)
        sequences.append(Sequence(asked, [1, 2, 3], round_index=row % 3))
        first_rows.append(total)
        tokens.append([0] * int(torch.randint(5, (1,), generator=generator)))
        total += len(tokens[-1]) + 1
    logits = 3 * torch.randn(total, vocab, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -math.inf
    probs = torch.zeros(200, 4, vocab)
    for row, (draft, first) in enumerate(zip(tokens, first_rows, strict=True)):
        noise = torch.randn(len(draft), vocab, generator=generator) * (row % 4)
        params = sequences[row].request.params
        for i in range(len(draft)):
            near = logits[first + i : first + i + 1] + noise[i]
            probs[row, i] = processed_probs(
                near, [params.temperature], [params.top_k], [params.top_p]
            )
            draft[i] = int(torch.multinomial(probs[row, i], 1, generator=generator))
    proposal = Proposal(tokens, None if deterministic else probs)

    native = verify_batch(logits, first_rows, sequences, proposal)
    # Distributions and draws stay native: the rules alone are compared.
    monkeypatch.setattr("engine.verify_batch.native_for", lambda *values: None)
    reference = verify_batch(logits, first_rows, sequences, proposal)

    assert native == reference
    assert {0, 1, 2, 3, 4} <= set(native[0].num_accepted)

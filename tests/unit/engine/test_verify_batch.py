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
from engine.verify_batch import log_probs, verify_batch
from tests.support.reference import reference_probs
from tests.support.tiny_models import request

VOCAB = 6


def batch(*, deterministic: bool) -> tuple[Tensor, list[int], list[Sequence], Proposal]:
    """Twelve rows, greedy and sampled mixed, with 0 to 2 drafts each."""
    generator = torch.Generator().manual_seed(5)
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


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_equals_its_rows(deterministic: bool) -> None:
    """Verdicts and distributions do not depend on batch mates."""
    logits, first_rows, sequences, proposal = batch(deterministic=deterministic)

    verdict, probs = verify_batch(logits, first_rows, sequences, proposal)

    for row, sequence in enumerate(sequences):
        count = len(proposal.tokens[row]) + 1
        own = logits[first_rows[row] : first_rows[row] + count]
        q = None if proposal.probs is None else proposal.probs[row : row + 1]
        alone, own_probs = verify_batch(own, [0], [sequence], Proposal([proposal.tokens[row]], q))
        assert alone.num_accepted == [verdict.num_accepted[row]]
        assert alone.next_tokens == [verdict.next_tokens[row]]
        mine, its = probs[row], own_probs[0]
        assert (mine is None) == (its is None) == sequence.request.params.is_greedy
        if mine is not None and its is not None:
            torch.testing.assert_close(mine[:count], its[:count])


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


def test_log_probs_are_those_of_the_processed_distribution() -> None:
    """Each emitted token under its own row, after temperature, top-k and top-p."""
    logits = 2 * torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    probs = processed_probs(logits, [0.7] * 3, [5] * 3, [0.95] * 3)
    tokens = probs.argmax(-1).tolist()

    found = log_probs(probs, tokens[:2])

    expected = [
        math.log(reference_probs(row, 0.7, 5, 0.95)[token])
        for row, token in zip(logits.double().tolist(), tokens[:2], strict=False)
    ]
    assert found == pytest.approx(expected, abs=1e-5)


def test_greedy_tokens_are_certain() -> None:
    """The law of a greedy row is one-hot: log-probability 0."""
    assert log_probs(None, [3, 1, 4]) == (0.0, 0.0, 0.0)

"""Tokens per round: closed forms, and rounds simulated token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.simulator.acceptance import Acceptance, Iid, Mixture, TwoState

MAX_DRAFTS = 8
BURSTY = TwoState(easy=0.9, hard=0.4, leave_easy=0.08, leave_hard=0.12)
LAWS = [Iid(0.7), BURSTY, Mixture(((0.3, Iid(0.8)), (0.7, BURSTY)))]


def plain(law: Acceptance, scale: float = 1.0) -> list[float]:
    """Tokens per round for K = 1 to 8."""
    values: list[float] = law.tokens_per_round(np.array([scale]), MAX_DRAFTS)[0].tolist()
    return values


def rounds_over(alphas: list[float], k: int, random: np.random.Generator) -> int:
    """Rounds that speculation needs for a text whose tokens have these probabilities."""
    position = rounds = 0
    while position < len(alphas):
        drafts = alphas[position : position + k]
        accepted = 0
        while accepted < len(drafts) and random.random() < drafts[accepted]:
            accepted += 1
        position += accepted + 1
        rounds += 1
    return rounds


def text(law: TwoState, length: int, random: np.random.Generator) -> list[float]:
    """Acceptance probabilities along a text."""
    hard, alphas = random.random() < 0.5, []
    for _ in range(length):
        alphas.append(law.hard if hard else law.easy)
        if random.random() < (law.leave_hard if hard else law.leave_easy):
            hard = not hard
    return alphas


def test_independent_acceptance_is_the_closed_form() -> None:
    """(1 - alpha^(K+1)) / (1 - alpha), and the sum of survivals."""
    for k, tokens in enumerate(plain(Iid(0.8)), start=1):
        assert tokens == pytest.approx((1 - 0.8 ** (k + 1)) / (1 - 0.8))
        assert tokens == pytest.approx(sum(0.8**j for j in range(k + 1)))


def test_two_equal_states_are_independent_acceptance() -> None:
    """Stretches that do not differ change nothing."""
    law = TwoState(easy=0.7, hard=0.7, leave_easy=0.1, leave_hard=0.3)
    assert plain(law) == pytest.approx(plain(Iid(0.7)))


def test_states_that_change_at_every_token() -> None:
    """K = 1, alternating states, by hand: a round that accepts keeps the state, one that fails
    does not, so starts are hard as often as 1 - easy to 1 - hard.
    """
    law = TwoState(easy=0.9, hard=0.5, leave_easy=1.0, leave_hard=1.0)
    hard = (1 - 0.9) / ((1 - 0.9) + (1 - 0.5))
    assert plain(law)[0] == pytest.approx(1 + hard * 0.5 + (1 - hard) * 0.9)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_two_states_against_simulated_rounds(k: int) -> None:
    """Null: simulated tokens per round have the computed mean.

    60 texts of 4,000 tokens; judged at 5 standard errors (alpha = 6e-7) by the spread between
    texts; power above 0.999 against an error of 3 %, a third of what independence would give.
    """
    random = np.random.default_rng(k)
    per_text = [4000 / rounds_over(text(BURSTY, 4000, random), k, random) for _ in range(60)]
    error = np.std(per_text, ddof=1) / math.sqrt(60)
    assert error < 0.006 * np.mean(per_text)
    assert abs(np.mean(per_text) - plain(BURSTY)[k - 1]) < 5 * error


def test_autocorrelation_costs_tokens() -> None:
    """Independent draws of the same marginal probability overrate bursty text, and more so for
    larger K: by about 2 % at K = 1 and 8 % at K = 5 in published runs.
    """
    law = TwoState(easy=0.95, hard=0.45, leave_easy=0.05, leave_hard=0.05)
    assert law.alpha == pytest.approx(0.7)
    over = [a / b - 1 for a, b in zip(plain(Iid(law.alpha)), plain(law), strict=True)]
    assert 0.01 < over[0] < 0.03
    assert over[0] < over[1] < over[2]
    assert 0.02 < over[4] < 0.1


def test_tasks_mix_as_a_ratio_of_sums() -> None:
    """Tokens are shared out by task, rounds follow: 300 tokens at 2 and 700 at 1.4 a round."""
    law = Mixture(((0.3, Iid(0.999)), (0.7, Iid(0.4))))
    rounds = 0.3 / plain(Iid(0.999))[0] + 0.7 / 1.4
    assert plain(law)[0] == pytest.approx(1 / rounds)


@pytest.mark.parametrize("law", LAWS)
def test_more_drafts_give_ever_fewer_tokens(law: Acceptance) -> None:
    """Survival does not increase with the position, and tokens rise with every scale."""
    tokens = [1.0, *plain(law)]
    steps = np.diff(tokens)
    assert (steps > 0).all()
    assert (np.diff(steps) < 1e-12).all()
    assert plain(law, 0.9) < plain(law) < plain(law, 1.05)


@pytest.mark.parametrize("law", LAWS)
def test_scales_are_rows(law: Acceptance) -> None:
    """Several scales at once give what each gives alone; a scale of 0 accepts nothing."""
    rows = law.tokens_per_round(np.array([0.0, 0.8, 1.0]), MAX_DRAFTS)
    assert rows[0].tolist() == pytest.approx([1.0] * MAX_DRAFTS)
    assert rows[1].tolist() == pytest.approx(plain(law, 0.8))
    assert rows[2].tolist() == pytest.approx(plain(law))


def test_no_scale_makes_acceptance_certain() -> None:
    """A factor far above 1 stays a probability."""
    assert all(math.isfinite(tokens) for tokens in plain(Iid(0.9), 10.0))
    assert plain(Iid(0.9), 10.0)[-1] < MAX_DRAFTS + 1

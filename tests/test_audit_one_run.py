"""The one-run audit against closed forms, exact coverage, and null data."""

import math

import numpy as np
import pytest
from scipy import stats

from bnmem import audit_one_run as audit
from bnmem.errors import InputError


@pytest.mark.parametrize("guesses, expected", [(40, 2.55), (200, 4.19), (600, 5.30)])
def test_ceiling_where_all_guesses_are_right(guesses, expected):
    top = audit.ceiling(guesses)
    assert round(top, 2) == expected
    q = 0.05 ** (1 / guesses)
    assert top == pytest.approx(math.log(q / (1 - q)), rel=1e-9)
    assert audit.epsilon_lower_bound(guesses, guesses) == top


@pytest.mark.parametrize("correct, guesses", [(0, 7), (7, 7), (5, 9), (31, 40)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_p_value_is_the_binomial_tail(correct, guesses, epsilon):
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(correct, guesses + 1))
    assert audit.p_value(correct, guesses, epsilon) == pytest.approx(tail, rel=1e-10)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
@pytest.mark.parametrize("correct, guesses", [(33, 40), (120, 200), (599, 600), (2, 2), (1, 1)])
def test_bound_is_the_largest_epsilon_that_is_refuted(correct, guesses, confidence):
    bound = audit.epsilon_lower_bound(correct, guesses, confidence=confidence)
    level = 1 - confidence
    if bound > 0:
        assert audit.p_value(correct, guesses, bound) == pytest.approx(level, rel=1e-6)
        assert audit.p_value(correct, guesses, bound + 1e-4) > level > audit.p_value(correct, guesses, bound - 1e-4)
    else:
        assert audit.p_value(correct, guesses, 0.0) >= level


def test_bound_is_zero_at_chance_and_grows_with_right_guesses():
    bounds = [audit.epsilon_lower_bound(c, 40) for c in range(41)]
    assert bounds[:26] == [0.0] * 26 and bounds[26] > 0
    assert (np.diff(bounds[25:]) > 0).all()


@pytest.mark.parametrize("guesses", [2, 20, 40, 200])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 4.0])
def test_bound_exceeds_the_truth_with_probability_at_most_five_percent(guesses, epsilon):
    """Exact, over all counts: randomised response with this epsilon is the hardest private mechanism."""
    pmf = stats.binom.pmf(np.arange(guesses + 1), guesses, 1 / (1 + math.exp(-epsilon)))
    bounds = np.array([audit.epsilon_lower_bound(c, guesses) for c in range(guesses + 1)])
    wrong = pmf[bounds > epsilon].sum()
    assert wrong <= 0.05 + 1e-12
    if guesses == 200 and epsilon < 4:
        assert wrong > 0.02  # not just by being useless


def test_null_data_show_no_leak():
    shown = 0
    for seed in range(1000):
        flips = audit.coins(100, seed=seed)
        scores = np.random.default_rng((seed, 1)).normal(size=100)
        shown += audit.audit(scores, flips, guesses=40, seed=seed).epsilon > 0
    exact = stats.binom.sf(25, 40, 0.5)
    assert exact < 0.05
    assert abs(shown / 1000 - exact) < 4 * math.sqrt(exact * (1 - exact) / 1000)


@pytest.mark.parametrize("order", [1, -1])
def test_ties_do_not_leak_the_order_of_the_canaries(order):
    flips = np.sort(audit.coins(400, seed=0))[::order]
    right = [audit.audit(np.zeros(400), flips, guesses=200, seed=seed).correct for seed in range(50)]
    assert abs(np.mean(right) - 100) < 4 * math.sqrt(200) / 2 / math.sqrt(50) + 1
    assert max(right) < 140


def test_audit_counts_right_guesses_among_the_clearest_canaries():
    flips = np.array([True, False, True, False, True, False, True, False])
    scores = np.array([9.0, -9, 8, -8, -1, 1, -7, 7])
    assert audit.guess(scores, 4, seed=0).tolist() == [1, -1, 1, -1, 0, 0, 0, 0]
    assert audit.guess(scores, 8, seed=0).tolist() == [1, -1, 1, -1, -1, 1, -1, 1]
    result = audit.audit(scores, flips, guesses=6, seed=0)
    assert (result.correct, result.guesses, result.canaries) == (4, 6, 8)
    assert result.p_at_zero == pytest.approx(22 / 64)
    assert result.epsilon == 0 and result.ceiling == audit.ceiling(6)


def test_a_perfect_leak_reaches_the_ceiling_and_no_more():
    flips = audit.coins(300, seed=1)
    scores = np.where(flips, 1.0, -1.0) + 0.1 * np.random.default_rng(0).normal(size=300)
    result = audit.audit(scores, flips, guesses=200, confidence=0.99, seed=0)
    assert result.correct == 200
    assert result.epsilon == result.ceiling == audit.ceiling(200, confidence=0.99) < audit.ceiling(200)


def test_coins_are_fair_independent_and_reproducible():
    flips = np.stack([audit.coins(500, seed=s) for s in range(400)])
    assert abs(flips.mean() - 0.5) < 4 * 0.5 / math.sqrt(flips.size)
    # unlike stratified halves, the number of heads varies as that of independent coins
    assert flips.sum(axis=1).var() == pytest.approx(125, rel=0.3)
    assert np.array_equal(flips[7], audit.coins(500, seed=7))


def test_the_number_of_guesses_has_no_default():
    with pytest.raises(TypeError, match="guesses"):
        audit.audit(np.zeros(4), np.ones(4, dtype=bool), seed=0)


FLIPS = np.array([True, False, True, False])


@pytest.mark.parametrize(
    "call, part",
    [
        (lambda: audit.audit(np.zeros(4), FLIPS.astype(int), guesses=2, seed=0), "booleans"),
        (lambda: audit.audit(np.zeros(4), FLIPS[:3], guesses=2, seed=0), "booleans"),
        (lambda: audit.audit(np.zeros((2, 2)), FLIPS, guesses=2, seed=0), "finite reals"),
        (lambda: audit.audit(np.array([1, 2, 3, np.nan]), FLIPS, guesses=2, seed=0), "finite reals"),
        (lambda: audit.audit(np.zeros(4), FLIPS, guesses=3, seed=0), "even"),
        (lambda: audit.audit(np.zeros(4), FLIPS, guesses=6, seed=0), "2..4"),
        (lambda: audit.audit(np.zeros(4), FLIPS, guesses=0, seed=0), "2..4"),
        (lambda: audit.audit(np.zeros(4), FLIPS, guesses=2.0, seed=0), "integer"),
        (lambda: audit.audit(np.zeros(4), FLIPS, guesses=2, confidence=95, seed=0), "0.95"),
        (lambda: audit.epsilon_lower_bound(5, 4), "0..4"),
        (lambda: audit.epsilon_lower_bound(-1, 4), "0..4"),
        (lambda: audit.p_value(1, 2, -0.1), "epsilon"),
        (lambda: audit.p_value(1, 2, math.nan), "epsilon"),
        (lambda: audit.coins(0, seed=0), "1 or more"),
        (lambda: audit.ceiling(True), "integer"),
    ],
)
def test_bad_input_is_refused(call, part):
    with pytest.raises(InputError, match=part) as caught:
        call()
    assert "\n" not in str(caught.value)

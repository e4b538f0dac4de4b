"""The score phi against mpmath, what it refuses, and the two baselines against plain loops."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import rankdata

from bnmem import masks, scores
from bnmem.errors import InputError


def exact_phi(row, label):
    with mpmath.workdps(60):
        own = mpmath.mpf(float(row[label]))
        rest = mpmath.fsum(mpmath.exp(mpmath.mpf(float(z))) for k, z in enumerate(row) if k != label)
        return float(own - mpmath.log(rest))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_phi_equals_mpmath_up_to_logits_of_ten_thousand(scale, classes):
    rng = np.random.default_rng(classes)
    z = rng.uniform(-scale, scale, size=(40, classes))
    z[:5] = np.sort(z[:5])[:, ::-1]  # the label of class 0 far ahead
    z[5:8] = z[5:8, :1]  # all equal
    labels = np.where(np.arange(40) < 8, 0, rng.integers(0, classes, 40))
    exact = np.array([exact_phi(row, label) for row, label in zip(z, labels, strict=True)])
    np.testing.assert_allclose(scores.phi(z, labels), exact, rtol=1e-15, atol=1e-15 * max(scale, 1))


def test_phi_goes_on_where_a_float32_softmax_stops():
    z = np.zeros((4, 2), dtype=np.float32)
    z[:, 0] = 10, 17, 40, 400
    p = softmax(z, axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        naive = np.log(p) - np.log(1 - p)
    assert p.dtype == np.float32 and np.isinf(naive[1:]).all()
    np.testing.assert_allclose(scores.phi(z, np.zeros(4, dtype=int)), [10, 17, 40, 400], rtol=1e-14)


def test_phi_and_cross_entropy_are_one_up_to_phi_15():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5000, 10)) * rng.uniform(0.1, 8, size=(5000, 1))
    labels = rng.integers(0, 10, 5000)
    z[np.arange(5000), labels] += rng.uniform(0, 25, 5000)
    phi = scores.phi(z, labels)
    loss = -log_softmax(z, axis=1)[np.arange(5000), labels]
    near = phi <= 15
    assert near.sum() > 2000 and phi[near].max() > 14.9
    np.testing.assert_allclose(phi[near], (-loss - np.log(-np.expm1(-loss)))[near], rtol=0, atol=1e-9)


def test_phi_takes_logits_log_probabilities_and_any_leading_shape():
    rng = np.random.default_rng(1)
    z, labels = rng.normal(size=(3, 7, 2, 5)), rng.integers(0, 5, 7)
    every = np.broadcast_to(labels[None, :, None], (3, 7, 2))
    phi = scores.phi(z, labels)
    assert phi.shape == (3, 7, 2) and phi.dtype == np.float64
    assert np.array_equal(phi, scores.phi(z, every))
    assert np.array_equal(phi[..., 1], scores.phi(z[:, :, 1], labels))
    assert np.array_equal(phi[2, :, 0], scores.phi(z[2, :, 0], labels))
    np.testing.assert_allclose(phi, scores.phi(log_softmax(z, axis=-1), labels), atol=1e-13)
    np.testing.assert_allclose(phi, scores.phi(z + 100, labels), atol=1e-12)
    np.testing.assert_allclose(phi, scores.phi(z.astype(np.float32), labels), atol=1e-5)


def test_phi_leaves_its_inputs_alone_and_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(2)
    z, labels = rng.normal(size=(4, 25, 3)), rng.integers(0, 3, 25)
    z.flags.writeable = labels.flags.writeable = False
    whole = scores.phi(z, labels)
    monkeypatch.setattr(scores, "BLOCK", 7)
    assert np.array_equal(scores.phi(z, labels), whole)


GOOD = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 0.1]])


@pytest.mark.parametrize(
    "logits, labels, part",
    [
        (np.where(GOOD == 3, np.nan, GOOD), [0, 1], r"logits at \[1\] are NaN"),
        (np.where(GOOD == 3, np.inf, GOOD), [0, 1], r"logits at \[1\] are NaN or infinite"),
        (np.where(GOOD == 1, -np.inf, GOOD), [0, 1], r"logits at \[0\]"),
        (GOOD, [0, 3], "0..2"),
        (GOOD, [-1, 0], "0..2"),
        (GOOD, [0.0, 1.0], "integers"),
        (GOOD, [True, False], "integers"),
        (GOOD, [0, 1, 2], r"labels \[3\] do not fit logits \[2, 3\]"),
        (GOOD, 1, "do not fit"),
        (GOOD[None], [[0], [1]], "do not fit"),
        (GOOD[:, :1], [0, 0], "K >= 2"),
        (GOOD[0], 0, "K >= 2"),
        (GOOD.astype(complex), [0, 1], "real"),
        (GOOD > 0, [0, 1], "real"),
        (np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]]), [0, 1], "look like probabilities"),
        (np.array([[0.2, 0.3, 0.5]], dtype=np.float32), [0], "look like probabilities"),
    ],
)
def test_bad_logits_and_labels_are_refused(logits, labels, part):
    with pytest.raises(InputError, match=part) as caught:
        scores.phi(logits, np.asarray(labels))
    assert "\n" not in str(caught.value)


def test_a_single_row_that_sums_to_one_is_no_probability():
    z = np.array([[0.2, 0.3, 0.5], [4.0, -1.0, 0.0]])
    assert scores.phi(z, np.array([2, 0])).shape == (2,)


def test_correct_is_whether_the_label_wins():
    assert scores.correct(GOOD, np.array([0, 0])).tolist() == [True, False]
    assert scores.correct(np.zeros((2, 1, 3)), np.array([0])).tolist() == [[True], [True]]
    with pytest.raises(InputError, match="NaN"):
        scores.correct(GOOD * np.nan, np.array([0, 0]))


def test_loss_threshold_is_minus_the_cross_entropy():
    rng = np.random.default_rng(3)
    z, labels = 5 * rng.normal(size=(4, 50, 6)), rng.integers(0, 6, 50)
    loss = -log_softmax(z, axis=-1)[:, np.arange(50), labels]
    result = scores.loss_threshold(scores.phi(z, labels))
    np.testing.assert_allclose(result, -loss, rtol=1e-10, atol=1e-14)
    assert np.array_equal(rankdata(result, axis=1), rankdata(scores.phi(z, labels), axis=1))


def rmia_loop(phi, kept_models):
    """log p of the target minus log mean p of the models that stay, sample by sample."""
    out = np.empty_like(phi)
    for t in range(len(phi)):
        for i in range(phi.shape[1]):
            log_p = [-math.log1p(math.exp(-v)) if v > 0 else v - math.log1p(math.exp(v)) for v in phi[:, i]]
            stay = [log_p[m] for m in kept_models(t, i)]
            out[t, i] = log_p[t] - (logsumexp(stay) - math.log(len(stay)))
    return out


def test_rmia_equals_a_loop_with_the_pair_left_out():
    phi = 4 * np.random.default_rng(4).normal(size=(8, 15))
    drawn = masks.paired(np.arange(15) % 3, pairs=4, seed=0)
    expected = rmia_loop(phi, lambda t, i: [m for m in range(8) if m // 2 != t // 2])
    np.testing.assert_allclose(scores.rmia(phi, drawn), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scores.rmia(phi, drawn, pairing="equal-counts"), expected, rtol=1e-12, atol=1e-12)


def test_rmia_keeps_its_digits_where_the_target_has_nearly_all_of_the_probability():
    phi = np.full((6, 4), -600.0) + np.arange(6)[:, None]
    phi[2] = 30.0
    drawn = masks.paired(np.arange(4) % 2, pairs=3, seed=0)
    expected = rmia_loop(phi, lambda t, i: [m for m in range(6) if m // 2 != t // 2])
    np.testing.assert_allclose(scores.rmia(phi, drawn), expected, rtol=1e-12)


def test_rmia_with_equal_counts_uses_equally_many_in_and_out_models():
    rng = np.random.default_rng(5)
    phi, drawn = 3 * rng.normal(size=(11, 30)), rng.random((11, 30)) < 0.5
    drawn[:, np.minimum(drawn.sum(axis=0), (~drawn).sum(axis=0)) < 3] = (np.arange(11) % 2 == 0)[:, None]

    def kept(t, i):
        sides = [list(np.flatnonzero(drawn[:, i])), list(np.flatnonzero(~drawn[:, i]))]
        n = min(len(s) for s in sides)
        own = sides[0] if drawn[t, i] else sides[1]
        gone = own.index(t) % n
        return [m for side in sides for k, m in enumerate(side[:n]) if k != gone]

    np.testing.assert_allclose(scores.rmia(phi, drawn, pairing="equal-counts"), rmia_loop(phi, kept), rtol=1e-11)


def test_baselines_refuse_what_they_cannot_use():
    drawn = masks.paired(np.arange(9) % 3, pairs=4, seed=0)
    with pytest.raises(InputError, match=r"masks \[8, 9\] do not fit phi \[8, 8\]"):
        scores.rmia(np.zeros((8, 8)), drawn)
    with pytest.raises(InputError, match="no pairs"):
        scores.rmia(np.zeros((7, 9)), drawn[:7])
    for bad in (np.full((8, 9), np.nan), np.full((8, 9), np.inf), np.full((8, 9), 1e101)):
        with pytest.raises(InputError, match=r"phi at \[0, 0\]"):
            scores.loss_threshold(bad)
    for bad in (np.zeros(9), np.zeros((8, 9), dtype=bool), np.zeros((0, 9))):
        with pytest.raises(InputError, match=r"shape \[M, N\]"):
            scores.loss_threshold(bad)

"""ROC, AUC, TPR at a small FPR, all exact under ties; paired differences and their coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bnmem import roc
from bnmem.errors import InputError

SAME_EVERY_TIME = settings(deadline=None, derandomize=True, max_examples=80)
tied = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({member for _, member in rows}) == 2
)


def arrays(rows):
    return np.array([float(s) for s, _ in rows]), np.array([m for _, m in rows])


def points_by_hand(scores, members):
    """(false positives, true positives) for every threshold, the highest first."""
    levels = [np.inf, *sorted(set(scores), reverse=True)]
    return [(int((~members & (scores >= v)).sum()), int((members & (scores >= v)).sum())) for v in levels]


@SAME_EVERY_TIME
@given(tied)
def test_roc_has_one_point_per_distinct_score_and_starts_at_zero(rows):
    scores, members = arrays(rows)
    by_hand = points_by_hand(scores, members)
    points = roc.curve(scores, members)
    assert len(points.fpr) == len(by_hand) == len(set(scores)) + 1
    assert np.array_equal(points.fpr, [f / (~members).sum() for f, _ in by_hand])
    assert np.array_equal(points.tpr, [t / members.sum() for _, t in by_hand])
    assert (points.fpr[0], points.tpr[0], points.fpr[-1], points.tpr[-1]) == (0, 0, 1, 1)


@SAME_EVERY_TIME
@given(tied)
def test_auc_counts_ties_as_half(rows):
    scores, members = arrays(rows)
    pairs = [(a > b) + (a == b) / 2 for a in scores[members] for b in scores[~members]]
    assert roc.auc(scores, members) == pytest.approx(np.mean(pairs), abs=1e-12)


@SAME_EVERY_TIME
@given(tied, st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]))
def test_tpr_at_fpr_is_the_largest_tpr_within_the_fpr(rows, fpr):
    scores, members = arrays(rows)
    within = [(t, f) for f, t in points_by_hand(scores, members) if f / (~members).sum() <= fpr]
    point = roc.tpr_at_fpr(scores, members, fpr, min_false_positives=0)
    assert point.tpr == max(t for t, _ in within) / members.sum()
    assert point.false_positives == max(f for _, f in within)
    assert point.negatives == (~members).sum()


def test_constant_scores_give_auc_one_half():
    members = np.arange(60).reshape(3, 20) % 4 == 0
    assert roc.auc(np.zeros((3, 20)), members) == 0.5
    assert roc.auc_per_target(np.full((3, 20), 7.0), members).tolist() == [0.5, 0.5, 0.5]
    points = roc.curve(np.zeros((3, 20)), members)
    assert points.fpr.tolist() == points.tpr.tolist() == [0, 1]
    assert roc.tpr_at_fpr(np.zeros((3, 20)), members, 0.5) == (None, 0, 45)


def test_an_fpr_that_is_hit_exactly_counts_as_within():
    """0.29 * 100 is 28.999999999999996 in floating point, 29 / 100 is 0.29."""
    scores, members = np.arange(200.0), np.arange(200) < 100
    assert roc.tpr_at_fpr(scores, members, 0.29).false_positives == 29
    assert roc.tpr_at_fpr(-scores, members, 0.29) == (1.0, 29, 100)


def test_tpr_is_refused_below_ten_false_positives_and_pooling_targets_helps():
    rng = np.random.default_rng(0)
    members = np.tile(np.arange(40) < 20, (16, 1))
    scores = rng.normal(size=members.shape) + members
    one = roc.tpr_at_fpr(scores[0], members[0], 0.05)
    assert one.tpr is None and one.false_positives == 1
    pooled = roc.tpr_at_fpr(scores, members, 0.05)
    assert pooled.false_positives == 16 and pooled.negatives == 320
    assert pooled.tpr == np.mean(scores[members] > np.sort(scores[~members])[-17])
    row = roc.summary(scores, members, fprs=(0.05, 0.01))
    assert row["tpr_at_fpr_0.01"] is None and row["false_positives_at_fpr_0.01"] == 3


def test_ten_false_positives_are_enough_and_nine_are_not():
    scores, members = np.arange(2000.0), np.arange(2000) % 2 == 0
    assert roc.tpr_at_fpr(scores, members, 0.009)[:2] == (None, 9)
    assert roc.tpr_at_fpr(scores, members, 0.01)[:2] == (0.01, 10)


def test_auc_is_per_target_and_names_carry_fractions():
    rng = np.random.default_rng(1)
    members = rng.random((4, 5000)) < 0.5
    scores = rng.normal(size=members.shape) + members + 5 * np.arange(4)[:, None]
    per_target = roc.auc_per_target(scores, members)
    assert per_target.tolist() == [roc.auc(s, m) for s, m in zip(scores, members, strict=True)]
    assert abs(per_target - stats.norm.cdf(1 / np.sqrt(2))).max() < 0.03
    assert roc.auc(scores, members) < per_target.mean() - 0.1  # pooling targets of different scale is another question
    row = roc.summary(scores, members, fprs=(0.001, 0.00001, 0.1))
    assert set(row) == {"auc"} | {
        f"{n}_at_fpr_{f}" for n in ("tpr", "false_positives") for f in ("0.001", "0.00001", "0.1")
    }
    assert row["auc"] == per_target.mean()
    assert row["tpr_at_fpr_0.1"] == roc.tpr_at_fpr(scores, members, 0.1).tpr and row["tpr_at_fpr_0.00001"] is None


MEMBERS = np.array([[True, False, True], [False, True, False]])


@pytest.mark.parametrize(
    "call, part",
    [
        (lambda: roc.auc(np.zeros((2, 2)), MEMBERS), "one shape"),
        (lambda: roc.auc(np.zeros((2, 3)), MEMBERS.astype(int)), "booleans"),
        (lambda: roc.auc(np.full((2, 3), np.nan), MEMBERS), "NaN"),
        (lambda: roc.curve(np.full((2, 3), -np.inf), MEMBERS), "infinity"),
        (lambda: roc.auc(np.zeros(3), np.ones(3, dtype=bool)), "one of the two"),
        (lambda: roc.auc(np.zeros(3), np.zeros(3, dtype=bool)), "one of the two"),
        (lambda: roc.auc_per_target(np.zeros(3), MEMBERS[0]), r"\[M, N\]"),
        (lambda: roc.auc_per_target(np.zeros((2, 1)), MEMBERS[:, :1]), "target 0 has 1 members of 1 samples"),
        (lambda: roc.tpr_at_fpr(np.zeros((2, 3)), MEMBERS, 1), "0.001"),
        (lambda: roc.tpr_at_fpr(np.zeros((2, 3)), MEMBERS, 0.0), "fraction"),
        (lambda: roc.paired_difference([1, 2], [1, 2]), "at least 4"),
        (lambda: roc.paired_difference([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), "M even"),
        (lambda: roc.paired_difference([1, 2, 3, 4], [1, 2, 3, 4, 5, 6]), "two arrays"),
        (lambda: roc.paired_difference([1, 2, 3, np.nan], [1, 2, 3, 4]), "NaN"),
        (lambda: roc.paired_difference([1, 2, 3, 4], [1, 2, 3, 4], confidence=95), "0.95"),
    ],
)
def test_bad_input_is_refused(call, part):
    with pytest.raises(InputError, match=part) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_paired_difference_is_a_paired_t_over_pairs_of_models():
    rng = np.random.default_rng(2)
    first, second = rng.normal(0.6, 0.02, 16), rng.normal(0.55, 0.02, 16)
    result = roc.paired_difference(first, second)
    a, b = first.reshape(8, 2).mean(axis=1), second.reshape(8, 2).mean(axis=1)
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert result.dof == expected.df == 7
    np.testing.assert_allclose(result.per_pair, a - b)
    np.testing.assert_allclose([result.p, result.low, result.high], [expected.pvalue, *interval], rtol=1e-10)
    assert result.mean == pytest.approx((first - second).mean())


def test_paired_difference_without_any_spread():
    assert roc.paired_difference(np.ones(6), np.zeros(6))[:6] == (1, 0, 1, 1, 2, 0)
    assert roc.paired_difference(np.ones(6), np.ones(6)).p == 1


def test_paired_interval_covers_as_often_as_it_says_where_counting_models_as_independent_does_not():
    """The two models of a pair share their split, here a shift that they have in common."""
    rng = np.random.default_rng(3)
    pairs_cover = models_cover = 0
    for _ in range(2000):
        values = np.repeat(rng.normal(size=8), 2) + 0.3 * rng.normal(size=16)
        result = roc.paired_difference(values, np.zeros(16))
        pairs_cover += result.low <= 0 <= result.high
        naive = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        models_cover += naive.low <= 0 <= naive.high
    assert abs(pairs_cover / 2000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000)
    assert models_cover / 2000 < 0.88

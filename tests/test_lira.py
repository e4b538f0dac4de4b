"""LiRA: no signal gives 0.5, a planted signal its closed form, and every score equals a plain loop."""

import contextlib
import io
import math
import pathlib
import re
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bnmem import lira, masks, roc
from bnmem.errors import InputError

CASES = [(mode, variance) for mode in lira.MODES for variance in lira.VARIANCES]
every_case = pytest.mark.parametrize("mode, variance", CASES)
PAGE = pathlib.Path(__file__).parents[1] / "book" / "howto_lira.md"


def paired(m, n, seed=0):
    return masks.paired(np.arange(n) % 5, pairs=m // 2, seed=seed)


def unpaired(m, n, seed=0):
    """Independent coin flips with at least 4 models on each side of every sample."""
    drawn = np.random.default_rng(seed).random((m, 3 * n)) < 0.5
    return drawn[:, np.minimum(drawn.sum(axis=0), (~drawn).sum(axis=0)) >= 4][:, :n]


def mean_auc(score, members):
    """Mean over targets of the rank-sum form of the AUC, on its own feet."""
    ranks = stats.rankdata(score, axis=1)
    k = members.sum(axis=1)
    u = (ranks * members).sum(axis=1) - k * (k + 1) / 2
    return float((u / (k * (members.shape[1] - k))).mean())


def no_signal(shape, rng):
    """Every sample has a place and a spread of its own; training on it changes nothing."""
    n = shape[1]
    return 3 * rng.normal(size=n) + np.exp(0.7 * rng.normal(size=n)) * rng.normal(size=shape)


def aucs(attack, draw_masks, make_phi, repeats):
    """Mean and standard error, over repeats, of the mean AUC of ``attack(phi, masks)``."""
    found = []
    for seed in range(repeats):
        drawn = draw_masks(seed)
        found.append(mean_auc(attack(make_phi(drawn, np.random.default_rng((seed, 1))), drawn), drawn))
    return np.mean(found), np.std(found, ddof=1) / np.sqrt(repeats)


@every_case
@pytest.mark.parametrize("m", [8, 16])
def test_null_data_gives_auc_one_half(m, mode, variance):
    mean, error = aucs(
        lambda phi, drawn: lira.score(phi, drawn, mode, variance),
        lambda seed: paired(m, 1000, seed),
        lambda drawn, rng: no_signal(drawn.shape, rng),
        repeats=30,
    )
    assert error < 0.003
    assert abs(mean - 0.5) < 4 * error


@every_case
@pytest.mark.parametrize("m", [15, 16])
def test_null_data_gives_auc_one_half_with_equal_counts(m, mode, variance):
    mean, error = aucs(
        lambda phi, drawn: lira.score(phi, drawn, mode, variance, pairing="equal-counts"),
        lambda seed: unpaired(m, 1000, seed),
        lambda drawn, rng: no_signal(drawn.shape, rng),
        repeats=20,
    )
    assert error < 0.003
    assert abs(mean - 0.5) < 4 * error


def online_per_example(phi, drawn, drop):
    """Online, per-example, in two masked passes; ``drop`` the pair, only the target, or nothing."""
    out = np.empty_like(phi)
    for t in range(len(phi)):
        others = {"pair": np.arange(len(phi)) // 2 != t // 2, "target": np.arange(len(phi)) != t, "nothing": True}[drop]
        density = []
        for side in (drawn, ~drawn):
            stay = side & np.reshape(others, (-1, 1))
            mean, std = phi.mean(axis=0, where=stay), phi.std(axis=0, ddof=1, where=stay)
            density.append(stats.norm.logpdf(phi[t], mean, std))
        out[t] = density[0] - density[1]
    return out


@pytest.mark.parametrize(
    "drop, m, expected",
    [
        ("pair", 8, 0.5),
        ("pair", 16, 0.5),
        ("target", 8, 0.445),
        ("target", 16, 0.488),
        ("nothing", 8, 0.786),
        ("nothing", 16, 0.685),
    ],
)
def test_why_the_pair_is_left_out_no_signal_gives_another_auc_otherwise(drop, m, expected):
    """Dropping only the target lets the counts tell membership; dropping nothing lets the target vouch for itself."""
    mean, error = aucs(
        lambda phi, drawn: online_per_example(phi, drawn, drop),
        lambda seed: paired(m, 1000, seed),
        lambda drawn, rng: rng.normal(size=drawn.shape),
        repeats=30,
    )
    assert abs(mean - expected) < 4 * error < 0.008
    assert drop == "pair" or abs(mean - 0.5) > 6 * error


def shifted(shift):
    return lambda drawn, rng: rng.normal(size=drawn.shape[1]) + rng.normal(size=drawn.shape) + shift * drawn


@pytest.mark.parametrize("m", [6, 8, 16, 64])
@pytest.mark.parametrize("shift", [0.5, 1.5])
def test_planted_shift_gives_the_closed_form_offline_pooled(m, shift):
    n = m // 2 - 1
    mean, error = aucs(
        lambda phi, drawn: lira.score(phi, drawn, "offline", "pooled"), lambda s: paired(m, 800, s), shifted(shift), 12
    )
    assert abs(mean - stats.norm.cdf(shift / math.sqrt(2 * (1 + 1 / n)))) < 4 * error < 0.012


@pytest.mark.parametrize("variance", lira.VARIANCES)
def test_planted_shift_online_rises_to_the_optimum_at_256_models(variance):
    best = stats.norm.cdf(1 / math.sqrt(2))
    found = []
    for m, repeats in ((8, 8), (16, 6), (64, 3), (256, 2)):
        found.append(
            aucs(
                lambda phi, drawn: lira.score(phi, drawn, "online", variance),
                lambda seed, m=m: paired(m, 1500, seed),
                shifted(1.0),
                repeats,
            )[0]
        )
    assert found == sorted(found)
    assert found[0] < best - 0.03
    assert abs(found[-1] - best) < 0.01


def slow_score(phi, stay_in, stay_out, mode, variance, nu0):
    """Formula by formula, target by target, sample by sample; ``stay_in(t, i)`` are the models that stay."""
    m, n = phi.shape
    out = np.empty((m, n))
    for t in range(m):
        sides = []
        for stay in (stay_in, stay_out):
            values = [[float(phi[k, i]) for k in stay(t, i)] for i in range(n)]
            squares = sum((len(v) - 1) * statistics.variance(v) for v in values)
            sides.append((values, squares / sum(len(v) - 1 for v in values)))
        for i in range(n):
            logs = []
            for values, pooled in sides:
                count, mean, s2 = len(values[i]), statistics.fmean(values[i]), statistics.variance(values[i])
                if variance == "pooled":
                    s2 = pooled
                elif variance == "shrunk":
                    s2 = (nu0 * pooled + (count - 1) * s2) / (nu0 + count - 1)
                if variance == "shrunk":
                    scale = math.sqrt(s2 * (1 + 1 / count))
                    logs.append(stats.t.logpdf(phi[t, i], nu0 + count - 1, mean, scale))
                else:
                    logs.append(stats.norm.logpdf(phi[t, i], mean, math.sqrt(s2)))
            out[t, i] = logs[0] - logs[1] if mode == "online" else (phi[t, i] - mean) / math.sqrt(s2)
    return out


@every_case
@pytest.mark.parametrize("m, nu0", [(6, 4.0), (10, 1.5)])
def test_leave_pair_out_equals_a_brute_force_loop(m, nu0, mode, variance):
    drawn = paired(m, 12)
    phi = no_signal(drawn.shape, np.random.default_rng(m)) + drawn
    expected = slow_score(
        phi,
        lambda t, i: [k for k in range(m) if drawn[k, i] and k // 2 != t // 2],
        lambda t, i: [k for k in range(m) if not drawn[k, i] and k // 2 != t // 2],
        mode,
        variance,
        nu0,
    )
    before = phi.copy()
    np.testing.assert_allclose(lira.score(phi, drawn, mode, variance, nu0=nu0), expected, rtol=1e-9, atol=1e-9)
    assert np.array_equal(phi, before)
    loose = lira.score(phi, drawn, mode, variance, nu0=nu0, pairing="equal-counts")
    np.testing.assert_allclose(loose, expected, rtol=1e-9, atol=1e-9)


@every_case
@pytest.mark.parametrize("far_out", [0, 1e5])
def test_equal_counts_equal_a_brute_force_loop(mode, variance, far_out):
    drawn = unpaired(13, 15)
    phi = no_signal(drawn.shape, np.random.default_rng(0)) + drawn
    phi[2] += far_out

    def stay(side):
        def models(t, i):
            n = min(drawn[:, i].sum(), (~drawn[:, i]).sum())
            gone = list(np.flatnonzero(drawn[:, i] == drawn[t, i])).index(t) % n
            return [k for j, k in enumerate(np.flatnonzero(drawn[:, i] == side)[:n]) if j != gone]

        return models

    expected = slow_score(phi, stay(True), stay(False), mode, variance, 4.0)
    result = lira.score(phi, drawn, mode, variance, pairing="equal-counts")
    np.testing.assert_allclose(result, expected, rtol=1e-8, atol=1e-8)


@every_case
def test_a_target_score_knows_neither_its_own_mask_nor_its_partner(mode, variance):
    """Swap a pair's masks and replace the partner's phi: nothing that the attack knows of the target has changed."""
    drawn = paired(8, 60)
    phi = no_signal(drawn.shape, np.random.default_rng(3)) + drawn
    swapped, replaced = drawn.copy(), phi.copy()
    swapped[[4, 5]] = drawn[[5, 4]]
    replaced[5] = 1000.0
    expected = lira.score(phi, drawn, mode, variance)
    np.testing.assert_allclose(lira.score(phi, swapped, mode, variance)[4:6], expected[4:6], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(lira.score(replaced, drawn, mode, variance)[4], expected[4], rtol=1e-6, atol=1e-6)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(CASES), st.floats(-1e4, 1e4), st.floats(0.01, 100))
def test_scores_follow_shifts_scales_and_reordering(seed, case, shift, scale):
    rng = np.random.default_rng(seed)
    drawn = paired(8, 20, seed)
    phi = no_signal(drawn.shape, rng) + drawn
    expected = lira.score(phi, drawn, *case)
    close = dict(rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lira.score(shift + scale * phi, drawn, *case), expected, **close)
    columns, pairs = rng.permutation(20), rng.permutation(4)
    rows = (2 * pairs[:, None] + [1, 0]).ravel()
    np.testing.assert_allclose(
        lira.score(phi[rows][:, columns], drawn[rows][:, columns], *case), expected[rows][:, columns], **close
    )
    if case[0] == "online":
        np.testing.assert_allclose(lira.score(phi, ~drawn, *case), -expected, **close)


@every_case
def test_digits_survive_a_model_far_out(mode, variance):
    """Running sums cancel when the value that leaves is nearly all of the sum of squares."""
    drawn = paired(8, 10)
    phi = np.random.default_rng(0).normal(size=drawn.shape)
    phi[2, :5] = 1e9
    expected = slow_score(
        phi[:, :5],
        lambda t, i: [k for k in range(8) if drawn[k, i] and k // 2 != t // 2],
        lambda t, i: [k for k in range(8) if not drawn[k, i] and k // 2 != t // 2],
        mode,
        variance,
        4.0,
    )
    result = lira.score(phi[:, :5], drawn[:, :5], mode, variance)
    np.testing.assert_allclose(result[3], expected[3], rtol=1e-5)
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-5)


@every_case
def test_constant_scores_tie_exactly_and_give_auc_one_half(mode, variance):
    drawn = paired(14, 40)
    score = lira.score(np.tile(np.arange(1, 41) / 30, (14, 1)), drawn, mode, variance)
    assert (score == 0).all()
    assert (roc.auc_per_target(score, drawn) == 0.5).all()
    half = np.where(np.arange(40) < 20, 0.1, np.random.default_rng(0).normal(size=drawn.shape))
    score = lira.score(half, drawn, mode, variance)
    assert np.isfinite(score).all() and len(np.unique(score[:, 20:])) == 14 * 20
    assert (score[:, :20] == score[:, :1]).all() and (variance != "per-example" or (score[:, :20] == 0).all())


@every_case
def test_all_rules_agree_at_one_query(mode, variance):
    drawn = paired(8, 30)
    phi = no_signal(drawn.shape, np.random.default_rng(0))
    expected = lira.score(phi, drawn, mode, variance)
    for rule in lira.RULES:
        assert np.array_equal(lira.score(phi[..., None], drawn, mode, variance, rule=rule), expected)


def test_several_queries_average_scores_or_phi():
    drawn = paired(8, 30)
    phi = np.random.default_rng(0).normal(size=(8, 30, 3))
    each = [lira.score(phi[..., q], drawn) for q in range(3)]
    np.testing.assert_allclose(lira.score(phi, drawn), np.mean(each, axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lira.score(phi, drawn, rule="mean-phi"), lira.score(phi.mean(axis=2), drawn))
    assert not np.allclose(lira.score(phi, drawn), lira.score(phi, drawn, rule="mean-phi"))


DRAWN = paired(8, 9)
ZERO = np.zeros((8, 9))


@pytest.mark.parametrize(
    "phi, drawn, options, part",
    [
        (ZERO[:7], DRAWN[:7], {}, "7 models are no pairs"),
        (ZERO, DRAWN[[0, 2, 1, 3, 4, 5, 6, 7]], {}, "models 0 and 1 are not complementary"),
        (ZERO[:4], DRAWN[:4], {}, "train more"),
        (ZERO[:5], DRAWN[:5], {"pairing": "equal-counts"}, "train more"),
        (ZERO[:, :8], DRAWN, {}, "do not fit"),
        (ZERO, DRAWN[:6], {}, "do not fit"),
        (ZERO, DRAWN.astype(float), {}, "booleans"),
        (ZERO[0], DRAWN, {}, r"\[M, N\] or \[M, N, Q\]"),
        (ZERO[..., None][..., :0], DRAWN, {}, "scores.phi"),
        (ZERO.astype(str), DRAWN, {}, "real"),
        (np.where(np.arange(9) == 4, np.nan, ZERO), DRAWN, {}, r"phi at \[0, 4\] is NaN"),
        (np.where(np.arange(9) == 4, -np.inf, ZERO), DRAWN, {}, r"phi at \[0, 4\]"),
        (ZERO, DRAWN, {"mode": "on-line"}, "online, offline"),
        (ZERO, DRAWN, {"variance": "global"}, "per-example, pooled, shrunk"),
        (ZERO, DRAWN, {"rule": "max"}, "mean-llr, mean-phi"),
        (ZERO, DRAWN, {"pairing": "any"}, "complementary, equal-counts"),
        (ZERO, DRAWN, {"nu0": 0}, "nu0"),
        (ZERO, DRAWN, {"std_floor": np.nan}, "std_floor"),
    ],
)
def test_bad_input_is_refused(phi, drawn, options, part):
    with pytest.raises(InputError, match=part) as caught:
        lira.score(phi, drawn, **options)
    assert "\n" not in str(caught.value) and ": " in str(caught.value)


def test_risk_table_equals_its_formulas_and_joins_columns():
    rng = np.random.default_rng(0)
    drawn = unpaired(11, 6)
    phi, correct = rng.normal(size=drawn.shape) + drawn, rng.random(drawn.shape) < 0.6
    table = lira.risk_table(phi, drawn, correct, {"group": np.array(list("ccfcof"))})
    for i in range(6):
        inside, outside = phi[drawn[:, i], i], phi[~drawn[:, i], i]
        spread = math.sqrt((statistics.variance(inside) + statistics.variance(outside)) / 2)
        assert table["d_prime"][i] == pytest.approx((inside.mean() - outside.mean()) / spread, rel=1e-12)
        right, wrong_side = correct[drawn[:, i], i], correct[~drawn[:, i], i]
        assert table["memorization"][i] == pytest.approx(right.mean() - wrong_side.mean(), abs=1e-12)
        error = sum(p.mean() * (1 - p.mean()) / (p.size - 1) for p in (right, wrong_side)) ** 0.5
        assert table["memorization_se"][i] == pytest.approx(error, rel=1e-12)
        assert (table["n_in"][i], table["n_out"][i]) == (inside.size, outside.size)
    assert table["group"].tolist() == list("ccfcof")
    assert "memorization" not in lira.risk_table(phi, drawn)


def test_memorization_standard_error_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)
    drawn = paired(20, 4000)
    correct = rng.random(drawn.shape) < np.where(drawn, 0.9, 0.4)
    table = lira.risk_table(rng.normal(size=drawn.shape), drawn, correct)
    assert table["memorization"].mean() == pytest.approx(0.5, abs=4 * table["memorization"].std() / 4000**0.5)
    assert np.sqrt((table["memorization_se"] ** 2).mean()) == pytest.approx(table["memorization"].std(), rel=0.05)


def test_risk_table_refuses_what_it_cannot_join():
    for arguments, part in (
        ((ZERO[:, :8], DRAWN), "do not fit"),
        ((ZERO, np.arange(8)[:, None] * np.ones((1, 9)) < 1), "at least 2"),
        ((ZERO, DRAWN, ZERO), "booleans"),
        ((ZERO, DRAWN, DRAWN[:, :3]), "booleans"),
        ((ZERO, DRAWN, None, {"d_prime": np.zeros(9)}), "taken"),
        ((ZERO, DRAWN, None, {"norm": np.zeros(8)}), "shape"),
        ((np.zeros((8, 9, 2)), DRAWN), r"\[M, N\]"),
    ):
        with pytest.raises(InputError, match=part):
            lira.risk_table(*arguments)


def test_the_how_to_page_runs_and_prints_what_it_shows():
    """Words must agree exactly, numbers within 0.05: solvers differ in the last digits from machine to machine."""
    first, *blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", PAGE.read_text(), re.S | re.M)
    names = {}
    printed = []
    for code, shown in [*blocks, first]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, PAGE.name, "exec"), names)
        printed.append(output.getvalue())
        if shown:
            assert re.sub(r"\d+(\.\d+)?", "#", printed[-1]) == re.sub(r"\d+(\.\d+)?", "#", shown)
            found, claimed = (re.findall(r"(?<![_\d.])\d+\.?\d*", text) for text in (printed[-1], shown))
            assert len(found) == len(claimed) > 0
            np.testing.assert_allclose(np.array(found, float), np.array(claimed, float), rtol=0, atol=0.05)
    three_lines = [line for line in first[0].splitlines() if line and "import" not in line]
    assert len(three_lines) == 3 and "auc" in printed[-1]
    assert sum(bool(shown) for _, shown in blocks) >= 7

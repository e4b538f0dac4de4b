"""Claims C4 and C5, query modes and audits: measures on made-up records with known answers, then the smallest runs."""

import copy
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy.stats import spearmanr

from bnmem import (
    canaries,
    exp_grid,
    lira,
    plots_membership,
    plots_query,
    roc,
    rules,
    scorecard,
    shadow_summary,
    shadows,
    train,
    verify,
)
from bnmem import exp_membership_inference as exp
from bnmem import exp_query_mode as query
from bnmem import tables_membership as tables
from bnmem.errors import InputError
from bnmem.exp_membership_inference import MembershipInference, Result
from bnmem.records import Record

from .conftest import ROOT

TINY = {"pool": 100, "n_test": 40, "batch_size": 16, "epochs": 2, "scored": (1, 2), "queries": (16, 50), "models": 6}
SMALL = TINY | {"rates": (0.0, 0.05), "also": ("none",), "canaries": 20, "guesses": 10, "measured": (1, 2)}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with train.one_thread():
        yield


def made_up(aucs, fits, models=6):
    """An arm's record whose AUC over all samples and fit to clean members are given per epoch, plus a spread."""
    spread = np.repeat(np.linspace(-0.01, 0.01, models // 2), 2)
    auc = {group: [(value + spread).tolist() for value in aucs] for group in ("all", "clean", "outliers")}
    fit = {group: [[value] * models for value in fits] for group in ("in_clean", "out_clean", "in_outliers", "test")}
    numbers = {"epochs": [1, 2, 3], "auc": auc, "accuracy": fit, "tpr": {}, "attacks": {}}
    return Record(exp.NAME, "shadows", str(id(auc)), {}, "", "", numbers, {}, {})


def result(ours, theirs, rates=(0.01, 0.05)):
    s = MembershipInference(rates=rates, also=("none",), models=6, epochs=3, scored=(1, 2, 3))
    runs = {(rate, arm): record for rate in rates for arm, record in (("batch", ours), ("none", theirs))}
    return Result(s, runs, {}, {}, [])


def test_differences_are_paired_over_pairs_of_models():
    r = result(made_up([0.5, 0.6, 0.7], [0.5, 0.7, 0.9]), made_up([0.5, 0.55, 0.6], [0.4, 0.6, 0.7]))
    gap = exp.difference(r, 0.05)
    assert gap.mean == pytest.approx(0.1) and gap.dof == 2 and len(gap.per_pair) == 3
    assert gap.low == pytest.approx(0.1)  # the spread is the same in both arms


def test_arms_that_leak_alike_for_the_same_fit_are_equal_at_equal_fit():
    r = result(made_up([0.5, 0.6, 0.7], [0.5, 0.7, 0.9]), made_up([0.45, 0.5, 0.6], [0.4, 0.5, 0.703]))
    control = exp.equal_fit(r, 0.05)
    assert control.epochs == (2, 3) and control.fit == pytest.approx((0.7, 0.703))
    assert control.gap["all"].mean == pytest.approx(0.0) and exp.difference(r, 0.05).mean == pytest.approx(0.1)
    assert control.aucs["all"] == pytest.approx((0.6, 0.6))


def test_no_common_level_of_fit_is_said():
    r = result(made_up([0.5, 0.6, 0.7], [0.5, 0.7, 0.9]), made_up([0.5, 0.5, 0.6], [0.4, 0.49, 0.71]))
    assert exp.equal_fit(r, 0.05) is None and exp.cells(r, "equal fit") == {}
    row = tables.equal_fit_rows(r)[0]
    assert row["epochs, BN / other"] == "no common level" and row["AUC, at equal fit"] == "not comparable"
    assert tables.verdict(r, "C4", "equal fit") == rules.UNMEASURED


def test_fit_half_a_point_apart_is_equal_and_more_is_not():
    theirs = [0.1, 0.2, 0.7049]
    assert exp.equal_fit(result(made_up([0.5] * 3, [0.5, 0.7, 0.9]), made_up([0.5] * 3, theirs)), 0.05)
    theirs[-1] = 0.7051
    assert not exp.equal_fit(result(made_up([0.5] * 3, [0.5, 0.7, 0.9]), made_up([0.5] * 3, theirs)), 0.05)


def test_claims_cells_use_the_metrics_of_the_rules():
    r = result(made_up([0.5] * 3, [0.9] * 3), made_up([0.4] * 3, [0.9] * 3), rates=(0.0, 0.01, 0.05))
    cells = exp.cells(r)
    for claim in ("C4", "C5"):
        assert {cell.metric for cell in cells[claim]} == {metric.name for metric in rules.RULES[claim].metrics}
        assert tables.verdict(r, claim) == rules.REPRODUCED
    assert exp.statuses(r) == ["holds"] * 6
    assert [exp.metric_of(rate) for rate in (0.0, 0.01, 0.05)] == list(sorted(exp.CLAIMS))[:3]


def test_without_one_of_its_rates_a_claim_is_not_measured():
    r = result(made_up([0.5] * 3, [0.9] * 3), made_up([0.4] * 3, [0.9] * 3), rates=(0.05, 0.1))
    assert tables.verdict(r, "C4") == rules.UNMEASURED and tables.verdict(r, "C5") == rules.UNMEASURED


@pytest.mark.parametrize(
    "change, message",
    [
        ({"against": "batch"}, "choose two different"),
        ({"models": 15}, "models must be even"),
        ({"models": 4}, "6 or more"),
        ({"rates": (0.0, 0.01)}, "fewer than 4 outliers"),
        ({"rates": (0.0, 5.0)}, "rates must be from 0.0 to 0.5"),
        ({"guesses": 11}, "guesses must be even and at most 20"),
        ({"guesses": 30}, "guesses must be even and at most 20"),
        ({"canaries": 60, "guesses": 10}, "at most half of the pool"),
        ({"scored": (1,)}, "scored must rise to 2"),
    ],
)
def test_settings_that_cannot_be_attacked_are_refused(change, message, results):
    with pytest.raises(InputError, match=message):
        exp.run(MembershipInference.of("smoke", SMALL | change), workers=1, progress=False)
    assert not results.exists()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Both experiments at their smallest, from nothing, with the environment that the later tests see."""
    folder = tmp_path_factory.mktemp("small") / "results"
    before = os.environ.get("BNMEM_RESULTS")
    os.environ["BNMEM_RESULTS"] = str(folder)
    try:
        membership = exp.run(MembershipInference.of("smoke", SMALL), workers=1, progress=False)
        shared = {name: value for name, value in TINY.items() if name in query.QueryMode.__dataclass_fields__}
        trained = len(list((folder.parent / ".cache").rglob("*.npz")))
        modes = query.run(query.QueryMode.of("smoke", shared), workers=1, progress=False)
        assert len(list((folder.parent / ".cache").rglob("*.npz"))) == trained  # nothing is trained twice
    finally:
        os.environ.pop("BNMEM_RESULTS")
        if before:
            os.environ["BNMEM_RESULTS"] = before
    return folder, membership, modes


@pytest.fixture
def there(ran, monkeypatch):
    monkeypatch.setenv("BNMEM_RESULTS", str(ran[0]))
    return ran[1], ran[2]


def test_the_experiment_runs_from_nothing_and_draws_everything(there):
    r, q = there
    assert all(record.fresh for record in r.records) and len(r.records) == 8
    for draw in (plots_membership.roc, plots_membership.gaps, plots_membership.equal_fit, plots_membership.gallery):
        assert draw(r).png() == draw(r).png()
    assert plots_query.modes(q).png()
    for make in (
        tables.attack_rows, tables.tpr_rows, tables.accuracy_rows, tables.equal_fit_rows, tables.method_rows,
        tables.risk_rows, tables.audit_rows, tables.verdict_rows, tables.record_rows,
    ):  # fmt: skip
        rows = make(r)
        assert rows and all(set(row) == set(rows[0]) for row in rows), make.__name__
    for make in (plots_query.mode_rows, plots_query.fit_rows, plots_query.order_rows, plots_query.verdict_rows):
        assert make(q) and all(set(row) == set(make(q)[0]) for row in make(q))
    assert tables.glue_values(r)["mi-C4-verdict"] == rules.UNMEASURED  # no pool with 1 %
    assert all(isinstance(text, str) for text in (tables.glue_values(r) | plots_query.glue_values(q)).values())


def test_stored_records_give_the_same_tables_in_the_same_order(there):
    r, q = there
    again = exp.run(r.settings, only_stored=True)
    for make in (tables.attack_rows, tables.method_rows, tables.equal_fit_rows, tables.audit_rows):
        assert make(again) == make(r)
    stored = query.run(q.settings, only_stored=True)
    assert plots_query.mode_rows(stored) == plots_query.mode_rows(q) and stored.modes == [
        "running",
        "batch 16",
        "batch 50",
    ]
    assert not again.notes and not stored.notes


def test_an_arms_record_holds_what_the_array_functions_say(there):
    r, _ = there
    arm = exp.arm_of(r.settings, 0.05, "batch")
    phi, inside = shadows.column(arm, "phi_2").astype(float), shadows.masks_of(arm)
    score, (_, bad) = lira.score(phi, inside), shadows.pool(arm)
    record = r.runs[0.05, "batch"]
    assert record.numbers["auc"]["all"][-1] == roc.auc_per_target(score, inside).tolist()
    rows = bad.corrupted
    assert record.numbers["auc"]["outliers"][-1] == roc.auc_per_target(score[:, rows], inside[:, rows]).tolist()
    table = lira.risk_table(phi, inside, shadows.column(arm, "correct_2"))
    assert np.array_equal(record.arrays["d_prime"], table["d_prime"].astype(np.float32))
    assert np.array_equal(record.arrays["group"] > 0, bad.corrupted)
    assert record.provenance["seconds"] == pytest.approx(shadows.column(arm, "seconds").sum(), abs=0.01)


def test_a_rate_that_rests_on_too_few_false_positives_is_refused_not_printed(there):
    r, _ = there
    at = r.runs[0.05, "batch"].numbers["tpr"]["outliers"]["0.01"]
    assert at["tpr"][-1] is None and at["false_positives"][-1] < roc.MIN_FALSE_POSITIVES
    assert tables.point(r, 0.05, "batch", "outliers", 0.01).startswith("not shown")
    assert np.isnan(r.runs[0.05, "batch"].arrays["roc_outliers"][0])


def test_verify_trains_anew_and_does_not_believe_the_cache(there):
    r, q = there
    for record in (r.runs[0.05, "none"], q.runs["none"], r.audits["batch"]):
        assert verify.recompute(record).holds
    poisoned = copy.deepcopy(r.runs[0.05, "none"].numbers)
    poisoned["auc"]["all"][-1][0] += 1e-9
    wrong = Record(**{**vars(r.runs[0.05, "none"]), "numbers": poisoned})
    assert not verify.recompute(wrong).holds


def test_elsewhere_a_mean_auc_within_three_errors_over_pairs_holds():
    near, far = np.array([0.6, 0.62, 0.58, 0.6, 0.64, 0.62]), np.array([0.7] * 6)
    assert exp.in_errors(near, near) == 0 and exp.in_errors(near, near + 1e-4) < 3 < exp.in_errors(near, far)


def test_what_the_chapter_says_in_words_is_what_the_records_say(committed):
    """book/membership_inference.md: should a recomputed record turn one of these, the words must be written anew."""
    r = exp.run(MembershipInference.of("laptop"), only_stored=True)
    assert exp.statuses(r) == ["holds"] * 3 + ["fails"] * 3  # "both claims hold here"; at equal fit not
    assert [tables.verdict(r, claim, "equal fit") for claim in ("C4", "C5")] == [rules.NOT] * 2
    for rate in r.settings.rates:
        control, gap = exp.equal_fit(r, rate), exp.difference(r, rate)
        assert gap.low > 0.04 > 0.02 > control.gap["all"].high
        affine = exp.equal_fit(r, rate, "affine").gap["all"]
        assert max(control.gap["all"].mean, affine.mean) < 0.01  # "at most a point of AUC is left"
        assert control.gap["all"].low < 0 and (affine.low > 0) == (rate == 0.05)  # "the one interval ... above zero"
        assert all(tables.test_gap(r, rate, arm).low < 0 for arm in ("none", "affine"))  # "not clearly ahead"
        assert 0.4 <= control.epochs[0] / control.epochs[1] <= 0.5 and control.epochs[1] == r.settings.epochs  # half
        tests = [exp.accuracy(r, rate, arm, "test").mean(axis=1) for arm in ("batch", "none")]
        at = r.settings.scored.index(control.epochs[0])
        assert max(abs(tests[0][at] - tests[1][-1]), abs(tests[0][-1] - tests[0][at])) < 0.013  # "bought time"
        assert abs(exp.difference(r, rate).mean) > 5 * abs(control.gap["all"].mean)
        if rate:  # "mislabelled ones and clean ones alike", "hardly begun to memorize the outliers"
            assert min(exp.difference(r, rate, group).low for group in ("outliers", "clean")) > 0
            assert control.gap["outliers"].mean < 0 and exp.accuracy(r, rate, "none", "in_outliers")[-1].mean() < 0.15
    assert tables.test_gap(r, 0.05, "affine").high < 0  # "behind the arm that has its affine part only"
    assert r.audits["batch"].numbers["epsilon"] > r.audits["none"].numbers["epsilon"] > 0
    table = exp.risk_table(r, "batch")
    clean, norm = table["group"] == 0, table["norm_5"]
    ranks = {name: [spearmanr(norm[rows], table[name][rows].astype(float)).statistic for rows in (clean, ~clean)]
             for name in ("d_prime", "memorization")}  # fmt: skip
    assert min(row[0] for row in ranks.values()) > 0.5  # "go some way with them"
    assert max(row[1] for row in ranks.values()) < 0.5  # "some warning, of clean samples above all"
    assert np.percentile(norm[~clean], 10) > 3 * np.median(norm[clean])  # "nearly all of their norms are large"
    q = query.run(query.QueryMode.of("laptop"), only_stored=True)
    assert set(query.statuses(q)) == {"open"}  # "the intervals of the move contain zero"
    assert 0 < query.shift(q, "batch 128").mean < 0.01  # "small here", "flatters the claim"


def test_words_on_other_data_are_what_the_grid_says(committed):
    """book/membership_inference.md names four data sets with LeNet, each arm at its own learning rate."""
    metrics = {m.name: m for m in rules.RULES["C4"].metrics}
    found = {}
    card = scorecard.collect(exp_grid.Grid())
    for cell in card.of("C4"):
        found.setdefault(cell.where, []).append(rules.cell_status(cell, metrics[cell.metric]))
    assert found["fashion_mnist / lenet"] == found["cifar10 / lenet"] == ["fails", "fails"]
    assert found["mnist / lenet"] == found["cifar100 / lenet"] == ["holds", "open"]
    gaps = {c.where: c.effect for c in card.of("C4") if c.metric == "auc_gap_5_percent"}
    for dataset in ("fashion_mnist", "cifar10"):  # "ResNet-8 leaks more"
        assert found[f"{dataset} / resnet8"] == ["holds"] and gaps[f"{dataset} / resnet8"] > gaps[f"{dataset} / lenet"]
    (metric,) = rules.RULES["C5"].metrics
    left = [c.where for c in card.of("C5", "equal fit") if rules.cell_status(c, metric) == "holds"]
    assert left == ["fashion_mnist / resnet8"]  # "one cell of C5 is left"


def test_the_risk_table_joins_the_readings_of_one_sample(there):
    r, _ = there
    table = exp.risk_table(r, "batch")
    pool = shadows.pool(exp.arm_of(r.settings, max(r.settings.rates), "batch"))[1]
    assert {len(column) for column in table.values()} == {r.settings.pool}
    assert (table["label"] == pool.labels).all() and ((table["group"] > 0) == pool.corrupted).all()
    assert [name for name in table if name.startswith("norm_")] == [f"norm_{e}" for e in r.settings.measured]
    first = tables.sample_rows(r, 1)[0]
    outliers = np.flatnonzero(pool.corrupted)
    assert first["index"] == str(table["index"][outliers[table["d_prime"][outliers].argmax()]])


def test_with_record_replaces_one_arm_only(there):
    r, q = there
    old = r.runs[0.05, "batch"]
    new = Record(**{**vars(old), "data": "another"})
    swapped = r.with_record(new)
    assert swapped.runs[0.05, "batch"] is new and swapped.runs[0.05, "none"] is r.runs[0.05, "none"]
    assert q.with_record(q.runs["batch"]).runs == q.runs


def test_the_gap_is_the_shift_plus_the_gap_with_running_statistics(there):
    _, q = there
    for mode in q.modes[1:]:
        whole = query.gap(q, mode).mean
        assert whole == pytest.approx(query.shift(q, mode).mean + query.gap(q, "running").mean)
    assert query.shift(q, "running").mean == 0
    assert q.runs["batch"].numbers["moved"]["running"] == 0 and q.runs["none"].numbers["moved"]["batch"] is None


def test_canaries_have_coins_of_their_own_and_are_absent_when_out():
    s = canaries.Audit(pool=200, n_test=40, canaries=60, guesses=20)
    _, bad, trained = canaries.pool(s)
    assert bad.corrupted.sum() == 60 and trained[~bad.corrupted].all()
    assert 15 < trained[bad.corrupted].sum() < 45
    other = canaries.Audit(pool=200, n_test=40, canaries=60, guesses=20, norm="none")
    assert np.array_equal(trained, canaries.pool(other)[2])  # arms share the coins
    moved = canaries.pool(canaries.Audit(pool=200, n_test=40, canaries=60, guesses=20, seed=1))[2]
    assert not np.array_equal(trained, moved)


def test_an_audit_of_a_net_that_learned_nothing_shows_no_leak():
    s = canaries.Audit(pool=200, n_test=40, canaries=60, guesses=40, epochs=1, lr=1e-7)
    numbers, _ = canaries.compute(s)
    assert numbers["epsilon"] < 0.3 and numbers["ceiling"] == pytest.approx(2.554, abs=1e-3)


def test_an_audit_of_a_net_that_memorized_its_canaries_shows_a_leak():
    s = canaries.Audit(pool=120, n_test=40, canaries=60, guesses=40, epochs=60, lr=0.05, batch_size=16)
    numbers, _ = canaries.compute(s)
    assert numbers["accuracy"]["canaries_in"] > 0.9 and numbers["epsilon"] > 1
    assert numbers["p_at_zero"] < 1e-4


def test_outliers_may_be_foreign_images():
    arm = exp.arm_of(MembershipInference.of("smoke", SMALL | {"corruption": "ood"}), 0.05, "batch")
    parts, _ = shadow_summary.members_of(arm)
    assert parts["outliers"].sum() == 5 and len(shadows.pool(arm)[1].ood) == 5
    assert set(shadows.groups(shadows.pool(arm)[1])) == {"clean", "ood"}


@pytest.mark.slow
def test_smoke_from_nothing_takes_under_a_minute(tmp_path):
    start = time.monotonic()
    command = [sys.executable, "-m", "bnmem", "run", "membership-inference", "--profile", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "claim: C4" in done.stdout, done.stderr[-2000:]
    assert time.monotonic() - start < 60 or os.getloadavg()[0] > 2 * os.cpu_count()

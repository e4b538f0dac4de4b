"""Claims C1 and C2: the measures on made-up curves with known answers, then the experiment itself at its smallest."""

import numpy as np
import pytest

from bnmem import exp_forced_memorization as exp
from bnmem import plots_memorization as plots
from bnmem import rules
from bnmem import tables_memorization as tables
from bnmem.errors import InputError
from bnmem.exp_forced_memorization import ForcedMemorization, Result
from bnmem.records import Record

EPOCHS = [0, 1, 2, 3, 4]


def record(corrupted, clean, test=0.5, val=0.5, seed=0):
    curves = {"corrupted": corrupted, "clean": clean, "test": np.full(5, test), "val": np.full(5, val)}
    accuracy = {group: np.broadcast_to(values, 5).tolist() for group, values in curves.items()}
    numbers = {"epoch": EPOCHS, "accuracy": accuracy, "loss": accuracy, "ratio": {}}
    provenance = {"start": "2026-01-01T00:00:00Z", "libraries": {"torch": "0"}}
    return Record(
        "forced_memorization", "training", f"k{id(accuracy)}", {"seed": seed}, "", "", numbers, {}, provenance
    )


def result(ours, theirs, **change):
    """A result of two arms with the given rows of records, the same for every tuning and kind."""
    s = ForcedMemorization(epochs=3, patience=1, corruptions=("flip",), seeds=len(ours), **change)
    search = record(0, 0)
    search.numbers["best"] = 0.1
    runs = {(t, "flip", arm): rows for t in exp.TUNINGS for arm, rows in (("batch", ours), ("none", theirs))}
    return Result(s, {"batch": search, "none": search}, runs, [])


def test_differences_are_paired_over_seeds_at_the_epoch_of_comparison():
    r = result(
        [record([0, 0, 0, 0.9, 1], 1.0), record([0, 0, 0, 0.5, 1], 1.0)],
        [record([0, 0, 0, 0.5, 1], 1.0), record([0, 0, 0, 0.1, 1], 1.0)],
    )
    gap = exp.difference(r, "same", "flip")
    assert gap.mean == pytest.approx(0.4) and gap.low == pytest.approx(0.4)  # both pairs differ by 0.4 exactly


def test_arms_that_fit_alike_but_at_another_speed_are_equal_at_equal_fit():
    fast = record([0, 0.4, 0.8, 1.0, 1.0], [0, 0.4, 0.8, 1.0, 1.0])
    slow = record([0, 0.1, 0.2, 0.4, 0.8], [0, 0.1, 0.2, 0.4, 0.8])
    r = result([fast, fast], [slow, slow])
    assert exp.difference(r, "same", "flip").mean == pytest.approx(0.6)
    level, values, gap = exp.equal_fit(r, "same", "flip")
    assert level == 0.8 and gap.mean == pytest.approx(0.0) and values == pytest.approx(np.full((2, 2), 0.8))
    assert exp.log2_speedup(r, "same", "flip").mean == pytest.approx(np.log2(3.25 / 1.25))


def test_an_arm_that_favours_corrupted_samples_shows_at_equal_fit():
    favours = record([0, 0.6, 0.9, 1.0, 1.0], [0, 0.4, 0.8, 1.0, 1.0])
    fair = record([0, 0.4, 0.8, 1.0, 1.0], [0, 0.4, 0.8, 1.0, 1.0])
    level, _, gap = exp.equal_fit(result([favours, favours], [fair, fair]), "same", "flip")
    assert level == 0.99 and gap.mean == pytest.approx(0.995 - 0.99)


def test_no_common_level_of_fit_is_said():
    r = result([record(0.1, 0.2)], [record(0.1, 0.1)])
    assert exp.equal_fit(r, "same", "flip") is None and tables.equal_fit_rows(r) == []


def test_runs_that_never_memorize_half_are_censored_and_bound_the_speed_up():
    never, half = record([0, 0, 0.1, 0.2, 0.3], 1.0), record([0, 0.25, 0.5, 0.75, 1], 1.0)
    r = result([half], [never])
    assert exp.epochs_to(r, "same", "flip", "none", "corrupted", 0.5) == [(4.0, False)]
    assert exp.epochs_to(r, "same", "flip", "batch", "corrupted", 0.5) == [(2.0, True)]
    assert exp.log2_speedup(r, "same", "flip").mean == pytest.approx(1.0)
    row = tables.face_value_rows(r)[0]
    assert row["epochs to half, no norm"] == "> 4" and row["epochs to half, BN"] == "2"


def test_test_accuracy_is_read_where_validation_is_best():
    r = result([record(0, 0)], [record(0, 0)])
    run = r.runs["same", "flip", "batch"][0]
    run.numbers["accuracy"]["val"] = [0.1, 0.2, 0.9, 0.3, 0.4]
    run.numbers["accuracy"]["test"] = [0.0, 0.1, 0.7, 0.8, 0.9]
    assert exp.test_accuracy(r, "same", "flip", "batch").tolist() == [0.7]


def test_with_record_replaces_one_training_only():
    a, b, c = (record(v, 1.0) for v in (0.1, 0.2, 0.3))
    r = result([a], [b])
    new = Record(**{**vars(c), "key": a.key})
    swapped = r.with_record(new)
    assert exp.at_epoch(swapped, "same", "flip", "batch")[0] == 0.3
    assert (
        exp.at_epoch(swapped, "same", "flip", "none")[0] == 0.2 and exp.at_epoch(r, "same", "flip", "batch")[0] == 0.1
    )


TINY = {"n_train": 80, "n_val": 20, "n_test": 20, "epochs": 1, "patience": 1, "seeds": 2, "lrs": (0.02, 0.05)}


def test_the_experiment_runs_from_nothing_and_draws_everything(results):
    s = ForcedMemorization.of("smoke", TINY)
    r = exp.run(s, workers=1, progress=False)
    assert all(record.fresh for record in r.records)
    assert len(list(results.glob("forced_memorization/*.json"))) == len(r.records)
    for figure in (plots.curves(r), plots.finals(r), plots.equal_fit(r), plots.bought(r)):
        assert figure.png() == figure.png()
    made = (tables.face_value_rows, tables.search_rows, tables.bought_rows, tables.verdict_rows, tables.record_rows)
    for rows in (make(r) for make in made):
        assert rows and all(set(row) == set(rows[0]) for row in rows)
    assert tables.glue_values(r)["fm-flip-same-verdict"] in ("reproduced", "partly", "not reproduced")
    again = exp.run(s, only_stored=True)
    assert exp.statuses(again) == exp.statuses(r) and not again.notes


def test_arms_are_paired_the_same_seed_gives_both_the_same_corruption():
    s = ForcedMemorization.of("smoke", TINY)
    jobs = [exp.training_job(s, "flip", arm, 0.02, seed) for arm in ("batch", "none") for seed in (0, 1)]
    marks = [job.kind.fingerprint(job.settings) for job in jobs]
    assert marks[0] == marks[2] != marks[1] == marks[3]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_train": 4000, "rate": 0.5}, "digits holds 1,797"),
        ({"rate": 0.0}, "corrupts none"),
        ({"rate": 0.005}, "corrupts none"),
        ({"against": "batch"}, "two different"),
    ],
)
def test_an_experiment_that_measures_nothing_is_refused(change, message, results):
    with pytest.raises(InputError, match=message):
        exp.run(ForcedMemorization.of("smoke", TINY | change))
    assert not results.exists()


def test_claims_cells_use_the_metrics_of_the_rules():
    cells = exp.cells(result([record(0.5, 1.0)], [record(0.1, 1.0)]))
    assert {c.metric for c in cells["C1"]} == {m.name for m in rules.RULES["C1"].metrics}


def test_what_the_chapter_says_in_words_is_what_the_records_say(committed):
    """book/forced_memorization.md: should a recomputed record turn one of these, the words must be written anew."""
    r = exp.run(ForcedMemorization.of("laptop"), only_stored=True)
    gaps = {(t, k): exp.difference(r, t, k) for t in exp.TUNINGS for k in exp.CLAIMS}
    assert all(gap.mean > 0 for gap in gaps.values())  # "BN is ahead in all four comparisons"
    ahead = [cell for cell, gap in gaps.items() if gap.low > 0]
    assert ahead == [("best", "flip"), ("best", "ood")]  # "clearly so where each arm has its own best"
    left = {cell: exp.equal_fit(r, *cell)[2] for cell in gaps}
    assert not [cell for cell, gap in left.items() if gap.low > 0]  # "in none ... above zero"
    assert [cell for cell, gap in left.items() if gap.high < 0] == [("same", "ood")]  # "in one ... below"
    assert exp.statuses(r)[len(exp.statuses(r)) // 2 :] == ["holds"] * 4  # "both cells of both claims hold"
    values = tables.glue_values(r)
    for role in ("ours", "theirs"):  # "nearly a tie over a wide range"
        low, high = map(float, values[f"fm-search-{role}-rates"].split(" to "))
        assert high > 10 * low
    for kind in exp.CLAIMS:
        ends = [exp.curve(record, "corrupted")[1][-1] for arm in r.arms for record in r.runs["same", kind, arm]]
        assert min(ends) > 0.9  # "in the end both nets memorize nearly everything"
        assert rules.verdict(exp.CLAIMS[kind], exp.cells(r)[exp.CLAIMS[kind]]) != rules.REPRODUCED
        assert "fails" not in exp.statuses(r)  # "open there rather than refuted"

"""The grid: which rows there are, running and resuming them, and the cells that come out, against numbers by hand."""

import numpy as np
import pytest

from bnmem import exp_grid, grid_cells, grid_trials, jobs, records, verify
from bnmem.__main__ import main
from bnmem.errors import Diverged, InputError
from bnmem.exp_grid import Grid
from bnmem.fit import at_equal_fit
from bnmem.grid_rows import ARMS, DATASETS, ROWS, Cells
from bnmem.records import Record


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The smallest row, computed once, and the folder of its records."""
    folder = tmp_path_factory.mktemp("grid") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BNMEM_RESULTS", str(folder))
        yield exp_grid.run(Grid.of("smoke"), workers=1, progress=False), folder


@pytest.fixture
def smoke(ran, monkeypatch):
    monkeypatch.setenv("BNMEM_RESULTS", str(ran[1]))
    return ran[0]


def rows(tier, what, **settings):
    return [r for r in ROWS if r.tier == tier and r.what == what
            and all(getattr(r.settings, name) == value for name, value in settings.items())]  # fmt: skip


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_tiers_hold_what_the_scorecard_needs(dataset):
    lenet = rows(1, "trainings", dataset=dataset, arch="lenet")
    assert {(r.settings.corruption, r.settings.rate) for r in lenet} == {
        ("flip", 0.05), ("ood", 0.05), ("flip", 0.01), ("flip", 0.1)}  # fmt: skip
    assert all(r.settings.seeds >= 3 and r.settings.n_train == 5000 for r in lenet)
    (attack,) = rows(1, "lira", dataset=dataset, arch="lenet")
    assert attack.settings.rates == (0.0, 0.01, 0.05) and attack.settings.models == 16
    for arch in ("resnet8", "densenet"):
        deep = rows(2, "trainings", dataset=dataset, arch=arch, rate=0.05)
        assert {r.settings.corruption for r in deep} == {"flip", "ood"} and all(r.settings.seeds >= 2 for r in deep)


def test_both_arms_of_a_row_differ_in_norm_and_learning_rate_only():
    for row in (row for row in ROWS if row.what != "regularization"):  # its arms train at one learning rate
        ours, theirs = (vars(row.searches()[arm].settings) for arm in ARMS)
        assert {name for name in ours if ours[name] != theirs[name]} == {"norm"}
        todo = exp_grid.jobs_of(row, {"batch": 0.05, "none": 0.1})
        by_arm = {arm: [vars(job.settings) for name, job in todo.items() if arm in name] for arm in ARMS}
        for ours, theirs in zip(by_arm["batch"], by_arm["none"], strict=True):
            assert {name for name in ours if ours[name] != theirs[name]} == {"norm", "lr"}
            assert (ours["lr"], theirs["lr"]) == (0.05, 0.1)


def test_learning_rates_are_searched_without_corruption_and_on_a_validation_split():
    for row in (row for row in ROWS if row.what != "regularization"):
        search = row.searches()["batch"].settings
        assert search.n_val >= 100 and len(search.lrs) >= 2
        assert (search.dataset, search.arch, search.init) == (
            row.settings.dataset, row.settings.arch, row.settings.init)  # fmt: skip


def test_regularization_is_on_every_data_set_and_attacked_on_two():
    found = rows(1, "regularization", arch="lenet")
    assert {r.settings.dataset for r in found} == set(DATASETS) and all(r.settings.seeds == 3 for r in found)
    assert sum(r.settings.attack for r in found) == 2
    assert len(rows(2, "regularization", arch="resnet8", dataset="cifar10")) == 1


def test_a_second_run_reads_and_the_plan_says_so(smoke, monkeypatch):
    monkeypatch.setattr(jobs.Job, "compute", lambda *a, **k: pytest.fail("computed again"))
    again = exp_grid.run(Grid.of("smoke"), progress=False)
    assert {r.key for r in again.records} == {r.key for r in smoke.records} and len(again.records) == 6
    (plan,) = exp_grid.plan(Grid.of("smoke").rows())
    assert (plan.total, plan.missing, plan.hours) == (6, 0, 0.0)


def test_a_lost_record_is_missing_and_nothing_else_is(smoke):
    path = records.stored("grid")[-1]
    body = path.read_bytes()
    path.unlink()
    try:
        (plan,) = exp_grid.plan(Grid.of("smoke").rows())
        assert plan.missing >= 1 and plan.hours > 0
        with pytest.raises(LookupError, match="1 of 1 rows"):
            exp_grid.run(Grid.of("smoke"), only_stored=True)
    finally:
        path.write_bytes(body)


def test_records_are_found_without_a_look_at_the_images(smoke, monkeypatch):
    monkeypatch.setattr("bnmem.data.load", lambda *a, **k: pytest.fail("asked for images"))
    assert len(exp_grid.stored(Grid.of("smoke")).rows) == 1


def test_the_smoke_row_has_cells_of_every_claim_it_feeds(smoke):
    found = grid_cells.found(smoke.rows[0])
    assert set(found) == {"C1", "C3", "C8"} and all(np.isfinite(c.effect) for row in found.values() for c in row)
    assert set(exp_grid.statuses(smoke)) <= {"holds", "open", "fails"}
    swapped = smoke.with_record(smoke.records[0])
    assert exp_grid.statuses(swapped) == exp_grid.statuses(smoke)


def made_up(noisy, clean=1.0, fit=(0.2, 0.6, 1.0), ratio=(2.0, 1.5, 1.0)):
    """A record of a training with three checkpoints."""
    epochs, flat = [0, 2, 4], [0.0, 0.1, 0.2]
    gradients = {"eval": {"noisy": list(noisy), "clean": [clean] * 3, "last_noisy": list(noisy), "auroc": flat}}
    accuracy = {"corrupted": flat, "clean": list(fit), "val": flat, "test": flat}
    numbers = {"epoch": epochs, "accuracy": accuracy, "loss": accuracy, "checkpoints": epochs, "gradients": gradients}
    numbers["ratio"] = {"a": list(ratio), "b": [2.0, 2.0, 3.0]}
    return Record("grid", "sweep", str(noisy), {}, "", "", numbers, {}, {})


def test_gradient_cells_are_log_ratios_of_medians_at_equal_epochs_and_at_equal_fit(smoke):
    row = smoke.rows[0].row
    runs = {("batch", seed): made_up((1, 4, 16)) for seed in range(2)}
    runs |= {("none", seed): made_up((1, 2, 4), fit=(0.1, 0.2, 0.6)) for seed in range(2)}
    cells = Cells(row, smoke.rows[0].searches, runs)
    face = {c.metric: c.effect for c in grid_cells.found(cells)["C3"]}
    assert face == {"log2_norm_noisy_over_clean": pytest.approx(3.0), "log2_norm_batch_over_none": pytest.approx(1.5)}
    (fit,) = grid_cells.found(cells, "equal fit")["C3"]
    level, _ = at_equal_fit([list(runs.values())], lambda record, epoch: epoch)
    assert level == 0.6
    assert at_equal_fit([[made_up((1, 1, 1), fit=(0.1, 0.2, 0.25))]], lambda record, epoch: epoch) is None
    assert fit.effect == pytest.approx(2.0 - 2.0)  # log2 4 at epoch 2 against log2 4 at epoch 4


def search_of(norm, *val):
    numbers = {"lrs": [0.1, 0.2, 0.4], "val_accuracy": [[v] for v in val], "best": 0.1, "diverged": []}
    return Record("grid", "search", norm, {}, "", "", numbers, {}, {})


def test_an_arm_whose_training_diverges_takes_the_next_best_rate_of_its_search_under_all_seeds():
    row = rows(2, "trainings", dataset="cifar10", arch="resnet8")[0]
    searches = {"batch": search_of("batch", 0.5, 0.9, 0.9), "none": search_of("none", 0.6, None, 0.7)}
    assert grid_trials.rates(searches["batch"]) == [0.2, 0.4, 0.1]  # of equals the smaller
    assert grid_trials.rates(searches["none"]) == [0.4, 0.1]  # a rate that diverged in the search is out
    failed = Record("grid", "sweep", "x", {}, "", "", {"diverged": "loss"}, {}, {})
    known = {("none", 0.4, 1): failed}

    def get(job):
        return known.get((job.settings.norm, job.settings.lr, job.settings.seed))

    best, abandoned = exp_grid.settle(row, searches, get)
    assert best == {"batch": 0.2, "none": 0.1}
    assert {(j.settings.norm, j.settings.lr, j.settings.seed) for j in abandoned} == {
        ("none", 0.4, 0),
        ("none", 0.4, 1),
    }
    known["none", 0.1, 0] = failed
    with pytest.raises(Diverged, match="at every learning rate"):
        exp_grid.settle(row, searches, get)


def test_a_diverged_training_of_the_grid_is_stored_and_the_row_goes_on(monkeypatch, results):
    row = next(row for row in ROWS if row.tier == 0)
    real = grid_trials.sweep.compute

    def fails(s, progress=False):
        if (s.norm, s.lr, s.seed) == ("none", first, 1):
            raise Diverged("loss 1e9")
        return real(s, progress)

    searches = dict(
        zip(row.searches(), jobs.run(list(row.searches().values()), workers=1, progress=False), strict=True)
    )
    first, second = grid_trials.rates(searches["none"])
    monkeypatch.setattr(grid_trials.sweep, "compute", fails)
    (cells,) = exp_grid.run(Grid.of("smoke"), workers=1, progress=False).rows
    assert cells.best == {"batch": grid_trials.rates(searches["batch"])[0], "none": second}
    assert len(cells.abandoned) == 2 and sum(map(grid_trials.diverged, cells.abandoned)) == 1
    (plan,) = exp_grid.plan([row])
    assert plan.missing == 0
    (lost,) = [record for record in cells.abandoned if grid_trials.diverged(record)]
    assert verify.recompute(lost).holds
    monkeypatch.setattr(grid_trials.sweep, "compute", real)
    assert not verify.recompute(lost).holds


def test_ratio_cells_count_layers_and_compare_with_initialization(smoke):
    runs = {(arm, seed): made_up((1, 1, 1)) for arm in ARMS for seed in range(2)}
    face = {c.metric: c.effect for c in grid_cells.found(Cells(smoke.rows[0].row, smoke.rows[0].searches, runs))["C8"]}
    assert face["share_above_one"] == 0.0  # one of two layers ends above 1: 1.0 is not above
    assert face["log2_ratio_change"] == pytest.approx(0.0)  # (1 + 3) / 2 over (2 + 2) / 2


def test_the_command_line_lists_and_plans(smoke, capsys):
    assert main(["run", "grid", "--dry-run", "--tier", "1", "--tier", "2"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["tier 1", "tier 2"]
    assert main(["run", "grid", "--list", "--only", "lira/*", "--tier", "2"]) == 0
    out = capsys.readouterr().out
    assert "lira/cifar10/resnet8/flip-0,0.05" in out and "trainings" not in out


@pytest.mark.parametrize("options", [["--only", "nothing*"], ["--tier", "7"]])
def test_a_choice_of_nothing_is_an_error(options, capsys):
    assert main(["run", "grid", "--dry-run", *options]) == 2
    assert capsys.readouterr().err.startswith("bnmem: ")


def test_grid_options_belong_to_the_grid(capsys):
    assert main(["run", "forced-memorization", "--dry-run"]) == 2
    assert "run grid" in capsys.readouterr().err
    with pytest.raises(InputError, match="no row"):
        Grid(only="x").rows()

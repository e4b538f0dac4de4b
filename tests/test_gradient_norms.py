"""Claim C3: the measures on made-up norms with known answers, then the experiment itself at its smallest."""

import copy
import importlib.util

import numpy as np
import pytest
import torch

from bnmem import exp_gradient_norms as exp
from bnmem import exp_grid, gradients, grads, grid_rows, jobs, rules, scorecard, train, training
from bnmem import plots_gradients as plots
from bnmem.errors import InputError
from bnmem.exp_gradient_norms import GradientNorms, Result
from bnmem.records import Record

from .conftest import ROOT

NOISY = np.array([True, True, True, False, False])


def record(noisy, clean, fit=(0.1, 0.5, 0.9), phi=None):
    """A record with the given median norms of noisy and clean samples at epochs 0, 1, 2."""
    spread = np.array([0.5, 1.0, 2.0])
    norm = np.array([[*(n * spread), *(c * spread[[0, 2]] / 1.25)] for n, c in zip(noisy, clean, strict=True)])
    phi = np.zeros((3, 5)) if phi is None else phi
    numbers = {"epoch": [0, 1, 2], "accuracy": {"clean": list(fit), "corrupted": [0, 0, 0], "test": [0, 0, 0]}}
    arrays = {"norm_eval": norm.astype(np.float32), "last_eval": norm.astype(np.float32), "noisy": NOISY, "phi": phi}
    return Record(
        "gradient_norms", "gradients", f"{noisy}{clean}{fit}", {}, "", "", numbers | {"ratio": [1, 1, 1]}, arrays, {}
    )


def result(ours, theirs):
    s = GradientNorms(epochs=2, compared=2, checkpoints=(0, 1, 2), also=("none",), seeds=len(ours))
    return Result(s, {"batch": ours, "none": theirs}, [])


def test_ratios_are_of_medians_and_leave_initialisation_out():
    r = result([record([9, 4, 8], [9, 1, 1])], [record([9, 2, 2], [9, 1, 1])])
    inside = exp.mean_until_compared(r, exp.noisy_over_clean(r, "batch"))
    across = exp.mean_until_compared(r, exp.over(r))
    assert inside.mean == pytest.approx((2 + 3) / 2, abs=1e-6)
    assert across.mean == pytest.approx((1 + 2) / 2, abs=1e-6)


def test_equal_fit_drops_time_out():
    """The same norms at the same fit, reached later: no difference is left."""
    fast, slow = record([8, 4, 1], [1, 1, 1], (0.6, 0.8, 0.9)), record([8, 8, 4], [1, 1, 1], (0.5, 0.6, 0.8))
    r = result([fast, fast], [slow, slow])
    assert exp.over(r)[0, -1] == pytest.approx(-2, abs=1e-6)
    found = exp.equal_fit(r)
    assert list(found) == [0.7, 0.8]
    assert all(gap.mean == pytest.approx(0, abs=1e-6) for gap in found.values())


def test_auroc_and_rank_correlation_have_their_known_values():
    apart = record([100, 100, 100], [1, 1, 1], phi=np.tile([3.0, 2.0, 1.0, 0.0, 0.0], (3, 1)))
    r = result([apart], [apart])
    assert (exp.auroc(r, "batch") == 1).all()
    assert exp.foretells(r, "batch") == pytest.approx(np.full((1, 3), -1))  # the largest norm has the smallest margin


def test_factors_keep_three_digits_and_the_glue_tells_both_ends_of_equal_fit():
    phi = np.tile([3.0, 2.0, 1.0, 0.0, 0.0], (3, 1))
    fast, slow = (record([8, after_one, 1], [1, 1, 1], (0.6, 0.8, 0.9), phi) for after_one in (4, 2))
    values = plots.glue_values(result([fast, fast], [slow, slow]))
    assert (values["gn-early-level"], values["gn-late-level"]) == ("0.7", "0.9")
    assert values["gn-early-fit"] == "1.41 [1.41, 1.41]" and values["gn-late-fit"] == "1.00 [1.00, 1.00]"
    assert values["gn-alike-from"] == "0.9" and values["gn-first-half"].endswith("under all four")
    assert (values["gn-theory-first"], values["gn-theory-last"]) == ("2", "2")  # measured 2 and 1, predicted 1 and 1


def test_a_net_without_batch_statistics_has_one_set_of_norms():
    r = record([1, 2, 4], [1, 1, 1])
    assert all(np.array_equal(exp.norm_of(r, d), exp.norm_of(r, "eval")) for d in grads.DEFINITIONS)


TINY = {
    "n_train": 120, "n_val": 20, "n_test": 20, "epochs": 2, "compared": 2, "seeds": 1, "probe": 65, "batch_size": 32,
    "checkpoints": (0, 2), "also": ("affine",), "rate": 0.2,
}  # fmt: skip


def test_the_experiment_runs_from_nothing_and_draws_everything():
    r = exp.run(GradientNorms.of("smoke", TINY), workers=1, progress=False)
    assert list(r.runs) == ["batch", "none", "affine"]
    for figure in (plots.distributions(r), plots.definitions(r), plots.detection(r), plots.theory(r)):
        assert figure.png()
    for rows in (plots.definition_rows(r), plots.detection_rows(r), plots.verdict_rows(r), plots.record_rows(r)):
        assert rows and all(set(row) == set(rows[0]) for row in rows)
    assert [row["definition"] for row in plots.definition_rows(r)] == list(grads.DEFINITIONS)
    assert plots.glue_values(r)["gn-verdict"]
    again = exp.run(GradientNorms.of("smoke", TINY), only_stored=True)
    assert exp.statuses(again) == exp.statuses(r) and not again.notes


def test_a_record_holds_the_norms_of_the_net_it_trained():
    s = gradients.Gradients(
        **{k: v for k, v in TINY.items() if k not in ("compared", "seeds", "also")}, corruption="flip"
    )
    numbers, arrays = gradients.compute(s)
    _, bad = training.inputs(s)
    assert sorted(set(arrays["rows"])) == sorted(arrays["rows"]) and len(arrays["rows"]) == 65
    assert np.array_equal(arrays["noisy"], bad.corrupted[arrays["rows"]])
    assert numbers["epoch"] == [0, 2] and arrays["norm_loss"].shape == (2, 65)
    # the untrained net, sample by sample
    from bnmem import models
    from bnmem.sources import SETS

    net = models.make(s.arch, s.norm, (28, 28), 10, s.seed).eval()
    x = train.to_images(bad.images, SETS[s.dataset], torch.device("cpu"))
    row = int(arrays["rows"][7])
    loss = torch.nn.functional.cross_entropy(net(train.batch_of(x, [row])), torch.tensor([bad.labels[row]]))
    norm = sum(g.square().sum() for g in torch.autograd.grad(loss, list(net.parameters()))).sqrt()
    assert arrays["norm_eval"][0, 7] == pytest.approx(norm.item(), rel=1e-4)


def test_measuring_norms_does_not_change_the_training():
    same = {k: v for k, v in TINY.items() if k not in ("compared", "seeds", "also", "probe", "checkpoints")}
    plain, _ = training.compute(training.Training(**same, corruption="flip"))
    with_norms, _ = gradients.compute(gradients.Gradients(**same, corruption="flip", probe=65, checkpoints=(0, 2)))
    for group in ("clean", "corrupted", "test"):
        assert with_norms["accuracy"][group] == [plain["accuracy"][group][0], plain["accuracy"][group][2]]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"checkpoints": (0, 2, 5)}, "checkpoints must rise within"),
        ({"checkpoints": (0,)}, "no checkpoint lies within"),
        ({"probe": 121}, "more than the 120 training images"),
        ({"against": "batch"}, "two different"),
        ({"rate": 0.0}, "holds 0 corrupted ones"),
    ],
)
def test_settings_that_measure_nothing_are_refused(change, message, results):
    with pytest.raises(InputError, match=message):
        exp.run(GradientNorms.of("smoke", TINY | change), workers=1)
    assert not list(results.glob("*/*.json"))


def test_with_record_replaces_one_training_only():
    a, b, c = (record([v, v, v], [1, 1, 1]) for v in (1, 2, 4))
    r = result([a], [b])
    swapped = r.with_record(Record(**{**vars(copy.copy(c)), "key": a.key}))
    assert exp.over(r)[0, 1] == pytest.approx(-1, abs=1e-6) and exp.over(swapped)[0, 1] == pytest.approx(1, abs=1e-6)


def test_the_code_hash_covers_all_that_can_change_the_numbers():
    from .test_project import STANDARD, reach

    assert set(gradients.CODE) == (reach("gradients") | {"gradients"}) - STANDARD
    assert jobs.check_code([gradients.GRADIENTS], []) == []


def test_what_the_chapter_says_in_words_is_what_the_records_say(committed):
    """book/gradient_norms.md: should a recomputed record turn one of these, the words must be written anew."""
    r = exp.run(GradientNorms.of("laptop"), only_stored=True)
    inside = {d: exp.mean_until_compared(r, exp.noisy_over_clean(r, "batch", d)) for d in grads.DEFINITIONS}
    across = {d: exp.mean_until_compared(r, exp.over(r, d)) for d in grads.DEFINITIONS}
    assert all(2**i.low > 1.5 for i in inside.values())  # "the first half of the claim holds in all four"
    assert max(i.mean for i in across.values()) < np.log2(1.5)  # "the difference is small"
    common = exp.equal_fit(r)
    assert common[min(common)].low > 0 and common[max(common)].low < 0 < common[max(common)].high  # "that fades"
    assert exp.mean_until_compared(r, exp.noisy_over_clean(r, "none")).low > 1  # "they do so without BN as well"
    at = exp.epochs(r)
    curve = exp.over(r).mean(axis=0)
    assert curve[at == 10] > 0 > curve[at == 60]  # "it changes sign once BN has memorized the samples"
    values = plots.glue_values(r)
    assert int(values["gn-agree"].removesuffix(" %")) <= 20  # "the first three agree"
    late = at == 60
    gap = exp.noisy_over_clean(r, "batch", "eval") - exp.noisy_over_clean(r, "batch", "param")
    assert (gap[:, late] > 1).all()  # "they part late"
    assert 0 < float(values["gn-theory-first"]) <= 4 and float(values["gn-theory-last"]) >= 20  # "There it shows"
    early = (at > 0) & (at <= 14)
    assert abs(exp.foretells(r, "batch").mean(axis=0)[early]).max() < 0.25  # "near zero"
    best = [float(row["best epoch"]) for row in plots.detection_rows(r)]
    assert best[0] < best[1]  # "BN gets there sooner"


def test_words_on_other_nets_are_what_the_grid_says(committed):
    """book/gradient_norms.md names CIFAR-10 and CIFAR-100 with LeNet, and the deeper nets."""
    card = scorecard.collect(exp_grid.Grid())
    metrics = {m.name: m for m in rules.RULES["C3"].metrics}
    inside, across = metrics

    def read(where, metric, reading="equal epochs"):
        return [c for c in card.of("C3", reading) if c.where.startswith(where) and c.metric == metric]

    hundred = read("cifar100 / lenet", inside) + read("cifar100 / lenet", across)
    assert hundred and not [c for c in hundred if rules.cell_status(c, metrics[c.metric]) == "holds"]
    ten = read("cifar10 / lenet", inside)
    assert ten and all(0.8 < c.effect < 1.3 for c in ten)  # "by about a factor of two"
    deep = [c for c in read("", across) if "lenet" not in c.where]
    assert {c.where.split(" / ")[0] for c in deep} == set(grid_rows.DATASETS)  # "on all four data sets"
    assert all(c.effect > np.log2(3) for c in deep)  # "on average several times larger"
    fit = [c for c in read("", across, "equal fit") if "lenet" not in c.where]
    assert [rules.cell_status(c, metrics[across]) for c in fit].count("holds") >= 3  # "several cells hold"
    memorized = [c for c in card.of("C1", "equal fit") if c.where.startswith("cifar10 / resnet8")]
    assert memorized and all(c.effect < 0.05 for c in memorized)  # "did not go with more memorization"


def test_the_benchmark_tables_are_whole_and_its_sentence_follows_from_them():
    spec = importlib.util.spec_from_file_location("bench_grads", ROOT / "benchmarks" / "bench_grads.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    sentence, tables = (ROOT / "benchmarks" / "bench_grads.md").read_text().split("<!-- table -->")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables.splitlines() if line[:1] == "|"]
    assert all(all(line) for line in lines)  # no empty cell, no empty header
    rows = [tuple(line) for line in lines if len(line) == 6 and line[1] in grads.DEFINITIONS]
    assert len(rows) > 20 and sentence.strip() == bench.summary(rows)
